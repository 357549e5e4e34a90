"""Fixtures of the speculator suite: one that the author writes, the others to change if needed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from aurora_core.interfaces import Drafter, Proposal, Speculator
from aurora_core.records import TargetSpec, Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.reference_engine import ReferenceEngine, draft_request
from aurora_core.testing.suites.material import (
    NUM_MEMORISED_TOKENS,
    plain_trace,
    recorded_traces,
    reference_target,
    tiny_target,
)
from aurora_core.testing.suites.required import missing_fixture

PRACTICE_STEPS = 30
CPU = torch.device("cpu")

DrafterMaker = Callable[[], Drafter]
"""Return a drafter that has read nothing yet."""


class SpeculatorFixtures:
    """What every part of the suite needs. `speculator` must be overridden."""

    _trained: ClassVar[dict[str, nn.Module]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._trained = {}  # training is slow: each class does it once

    @pytest.fixture
    def target(self) -> TargetSpec:
        """The tiny target that the speculator is built for."""
        return tiny_target()

    @pytest.fixture
    def speculator(self, target: TargetSpec) -> Speculator:
        """The speculator under test, built for `target`."""
        missing_fixture("speculator", "return your speculator, built for the fixture `target`")

    @pytest.fixture
    def num_speculative_tokens(self) -> int:
        """Depth of the proposals asked for; no more than what its training covers."""
        return 3

    @pytest.fixture
    def max_nodes(self, speculator: Speculator, num_speculative_tokens: int) -> int:
        """Budget of the proposals asked for."""
        return num_speculative_tokens * (4 if "tree" in speculator.topologies else 1)

    @pytest.fixture
    def overfit_steps(self) -> int:
        """Optimizer steps within which one answer must be learned by heart."""
        return 300

    @pytest.fixture
    def overfit_learning_rate(self) -> float:
        """AdamW's learning rate meanwhile."""
        return 3e-3

    @pytest.fixture(autouse=True)
    def quiet_process(self) -> Iterator[None]:
        """One thread and a known random state, both given back afterwards."""
        num_threads, state = torch.get_num_threads(), torch.get_rng_state()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        yield
        torch.set_num_threads(num_threads)
        torch.set_rng_state(state)

    @pytest.fixture
    def weights(self, target: TargetSpec) -> TargetWeights:
        """The target's tensors."""
        return TargetWeights(target)

    @pytest.fixture
    def traces(self, speculator: Speculator, target: TargetSpec) -> list[Trace]:
        """Greedy answers drafted with errors, in trees if the speculator drafts trees."""
        branching = 2 if "tree" in speculator.topologies else 1
        return recorded_traces(target, speculator.needs, branching=branching)

    @pytest.fixture
    def answer(self, speculator: Speculator, target: TargetSpec) -> Trace:
        """The answer to learn by heart, decoded plainly."""
        return plain_trace(target, speculator.needs, num_response=NUM_MEMORISED_TOKENS)

    @pytest.fixture
    def engine(self, speculator: Speculator, target: TargetSpec) -> ReferenceEngine:
        """An engine that serves `target` exactly, one request at a time."""
        return ReferenceEngine(reference_target(target), speculator.needs)

    @pytest.fixture
    def fresh_module(
        self, speculator: Speculator, weights: TargetWeights, traces: list[Trace]
    ) -> nn.Module:
        """A new lineage, chosen from `traces`."""
        return build(speculator, weights, traces)

    @pytest.fixture
    def module(
        self, speculator: Speculator, weights: TargetWeights, traces: list[Trace]
    ) -> nn.Module:
        """A module that learned from `traces` for a while: right at times, but not always."""
        key = f"practised {speculator.options!r}"
        if key not in self._trained:
            practised = build(speculator, weights, traces)
            if speculator.trainable:
                train(speculator, practised, speculator.collate(traces), PRACTICE_STEPS, 3e-3)
            self._trained[key] = practised
        return copy.deepcopy(self._trained[key])

    @pytest.fixture
    def memorised(
        self,
        speculator: Speculator,
        weights: TargetWeights,
        answer: Trace,
        num_speculative_tokens: int,
        overfit_steps: int,
        overfit_learning_rate: float,
    ) -> nn.Module:
        """A module that was trained on `answer` alone, until it should know it by heart."""
        key = f"memorised {speculator.options!r}"
        if key not in self._trained:
            module = build(speculator, weights, [answer])
            batch = speculator.collate([answer])
            for _ in range(0, overfit_steps, PRACTICE_STEPS):
                train(speculator, module, batch, PRACTICE_STEPS, overfit_learning_rate)
                accepted, anchors = speculator.acceptance(module, batch, num_speculative_tokens)
                if int(accepted[0, -1]) >= int(anchors[0]) - num_speculative_tokens + 1:
                    break
            # A little more than just right, so that rounding does not undo it.
            train(speculator, module, batch, PRACTICE_STEPS, overfit_learning_rate)
            self._trained[key] = module
        return copy.deepcopy(self._trained[key])

    @pytest.fixture
    def new_drafter(
        self, speculator: Speculator, module: nn.Module, traces: list[Trace]
    ) -> DrafterMaker:
        """Make drafters of `module`; those that learn without gradients have seen `traces`."""

        def make() -> Drafter:
            drafter = serve(speculator, module)
            if not speculator.trainable:
                for trace in traces:
                    drafter.observe(trace)
            return drafter

        return make


def build(
    speculator: Speculator, weights: TargetWeights, traces: Sequence[Trace], seed: int = 0
) -> nn.Module:
    """Return a new module, the same for the same seed."""
    torch.manual_seed(seed)
    return speculator.build_module(weights, traces if speculator.trainable else ())


def serve(speculator: Speculator, module: nn.Module) -> Drafter:
    """Return a float32 drafter on CPU."""
    return speculator.drafter(module, dtype=torch.float32, device=CPU)


def train(
    speculator: Speculator,
    module: nn.Module,
    batch: Mapping[str, Tensor],
    num_steps: int,
    learning_rate: float,
) -> list[float]:
    """Take optimizer steps on one batch and return the losses before each."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    module.train()
    losses = []
    for _ in range(num_steps):
        output = speculator.loss(module, batch)
        loss = output.loss_sum / output.weight_sum
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        losses.append(float(loss.detach()))
    module.eval()
    return losses


def draft_along(
    drafter: Drafter,
    traces: Mapping[int, Trace],
    *,
    depths: Mapping[int, int],
    max_nodes: int,
    turns: int = 4,
) -> dict[int, list[Proposal]]:
    """Step several requests together along their traces, each at a pace of its own.

    Args:
        traces: by any number; a request's pace depends on its number.
        depths: `num_speculative_tokens` of each.

    Returns:
        the proposals of each, one per turn
    """
    found: dict[int, list[Proposal]] = {index: [] for index in traces}
    for turn in range(turns):
        requests = []
        for index, trace in traces.items():
            pace = 1 + index % 3
            root = trace.prompt_len + turn * pace
            start = 0 if turn == 0 else root - pace
            requests.append(
                draft_request(
                    trace,
                    start,
                    root,
                    num_speculative_tokens=depths[index],
                    max_nodes=max_nodes if depths[index] else 0,
                )
            )
        proposals = drafter.propose(requests)
        assert len(proposals) == len(requests), "one proposal for each request"
        for index, proposal in zip(traces, proposals, strict=True):
            found[index].append(proposal)
    return found


def require_equal(proposal: Proposal, expected: Proposal, what: str) -> None:
    """Compare two proposals; log-probabilities may differ by rounding."""
    assert list(proposal.token_ids) == list(expected.token_ids), f"tokens differ: {what}"
    assert list(proposal.parents) == list(expected.parents), f"parents differ: {what}"
    assert list(proposal.log_probs) == pytest.approx(
        list(expected.log_probs), rel=1e-3, abs=1e-3
    ), f"log-probabilities differ: {what}"


def depths_of(proposal: Proposal) -> list[int]:
    """Return the depth of every node, 1 for children of the root."""
    depths: list[int] = []
    for parent in proposal.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def best_path(proposal: Proposal) -> list[int]:
    """Return the tokens met by going to the most likely child from the root on."""
    tokens: list[int] = []
    here = -1
    while children := [n for n, parent in enumerate(proposal.parents) if parent == here]:
        here = max(children, key=lambda node: proposal.log_probs[node])
        tokens.append(int(proposal.token_ids[here]))
    return tokens
