"""Drafts for sampled requests: what they say they were drawn from, and that nothing is lost.

A drafter that never samples passes with its deterministic drafts.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from aurora_core.interfaces import DraftRequest, Proposal, Speculator
from aurora_core.records import Sampling, TargetSpec, Trace
from aurora_core.testing.goodness_of_fit import LEAST_EXPECTED, misfit
from aurora_core.testing.reference_engine import ReferenceEngine, draft_request
from aurora_core.testing.reference_verification import distribution, drawn_from, verify
from aurora_core.testing.suites.speculator_fixtures import (
    DrafterMaker,
    SpeculatorFixtures,
    depths_of,
    require_equal,
)

NUM_DRAWS = 500
FEW_DRAWS = 20
LIMIT = 5.5
"""Standard deviations; chance alone reaches them once in tens of millions of comparisons."""
SAMPLINGS = {
    "temperature": Sampling(temperature=0.8, rule="rejection"),
    "top_p": Sampling(temperature=1.2, top_p=0.8, rule="rejection"),
    "top_k": Sampling(temperature=1.5, top_k=4, rule="rejection"),
}
NEGLIGIBLE = LEAST_EXPECTED / NUM_DRAWS
"""All answers that begin with a token less likely than this are counted together anyway."""

Sampler = Callable[[Sampling], list[Proposal]]
"""Draft `NUM_DRAWS` times at one place of one request, each time with other random numbers."""

FewSampler = Callable[[Sampling, int], list[Proposal]]
"""Draft so many times with a new drafter."""


class SamplingPromises(SpeculatorFixtures):
    """`DraftRequest.sampling` and `Proposal.drawn_from`."""

    _sampled: ClassVar[dict[str, list[Proposal]]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._sampled = {}  # drafting so often is slow: each class does it once for all its tests

    @pytest.fixture
    def place(self, traces: list[Trace]) -> DraftRequest:
        """A place in the middle of an answer to draft at; depth and nodes are set by tests."""
        trace = traces[0]
        return draft_request(trace, 0, trace.prompt_len + 3, num_speculative_tokens=1)

    @pytest.fixture
    def sample_afresh(
        self,
        new_drafter: DrafterMaker,
        place: DraftRequest,
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> FewSampler:
        """Draft at `place`, as often as asked."""

        def propose(sampling: Sampling, count: int) -> list[Proposal]:
            generator = torch.Generator().manual_seed(3)
            shape = (count, num_speculative_tokens)
            uniforms = torch.rand(shape, generator=generator, dtype=torch.float64).tolist()
            requests = [
                dataclasses.replace(
                    place,
                    request_id=f"draw {index}",
                    num_speculative_tokens=num_speculative_tokens,
                    max_nodes=max_nodes,
                    sampling=sampling,
                    uniforms=numbers,
                )
                for index, numbers in enumerate(uniforms)
            ]
            drafter = new_drafter()
            return [
                proposal
                for first in range(0, count, 100)
                for proposal in drafter.propose(requests[first : first + 100])
            ]

        return propose

    @pytest.fixture
    def sample(self, speculator: Speculator, sample_afresh: FewSampler) -> Sampler:
        """Draft `NUM_DRAWS` times at `place`, the same for all tests."""

        def propose(sampling: Sampling) -> list[Proposal]:
            key = f"{speculator.options!r} {sampling!r}"
            if key not in self._sampled:
                proposals = sample_afresh(sampling, FEW_DRAWS)
                if any(proposal.drawn_from is not None for proposal in proposals):
                    proposals = sample_afresh(sampling, NUM_DRAWS)
                else:  # deterministic ones do not change
                    proposals = proposals * (NUM_DRAWS // FEW_DRAWS)
                self._sampled[key] = proposals
            return self._sampled[key]

        return propose

    @pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
    def test_sampled_drafts_say_what_they_were_drawn_from(
        self, sample: Sampler, target: TargetSpec, sampling: Sampling
    ) -> None:
        """One distribution per node over target ids, in which the node's own token has a share."""
        for proposal in sampled_only(sample(sampling)):
            stated = proposal.drawn_from
            assert stated is not None
            ids = stated.token_ids
            assert stated.probs.shape == (len(proposal.token_ids), len(ids))
            assert bool((ids >= 0).all()) and bool((ids < target.vocab_size).all())
            assert len(set(ids.tolist())) == len(ids), "an id stands twice"
            assert bool((stated.probs >= 0).all())
            sums = stated.probs.double().sum(-1)
            assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5), "rows sum to 1"
            first_child: dict[int, int] = {}
            for node, (token, parent) in enumerate(
                zip(proposal.token_ids, proposal.parents, strict=True)
            ):
                assert drawn_from(proposal, node, target.vocab_size)[token] > 0
                sibling = first_child.setdefault(parent, node)
                assert torch.equal(stated.probs[node], stated.probs[sibling]), "siblings differ"

    @pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
    def test_sampled_drafts_are_drawn_from_what_they_say(
        self, sample: Sampler, target: TargetSpec, sampling: Sampling
    ) -> None:
        """By depth, tokens come as often as the distributions stated for them add up to."""
        tokens: dict[int, list[int]] = defaultdict(list)
        expected: dict[int, Tensor] = defaultdict(
            lambda: torch.zeros(target.vocab_size, dtype=torch.float64)
        )
        for proposal in sampled_only(sample(sampling)):
            for node, depth in enumerate(depths_of(proposal)):
                tokens[depth].append(int(proposal.token_ids[node]))
                expected[depth] += drawn_from(proposal, node, target.vocab_size)
        for depth, drawn in tokens.items():
            counts = {token: count for token, count in enumerate(expected[depth].tolist()) if count}
            assert misfit(drawn, counts) < LIMIT, f"depth {depth}"

    @pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
    def test_siblings_are_drawn_independently(
        self, sample: Sampler, target: TargetSpec, sampling: Sampling
    ) -> None:
        """Two of them are equal as often as independent draws would be, neither more nor less."""
        equal, expected, variance = 0, 0.0, 0.0
        for proposal in sampled_only(sample(sampling)):
            last_child: dict[int, int] = {}
            for node, parent in enumerate(proposal.parents):
                if parent in last_child:
                    before = last_child[parent]
                    equal += proposal.token_ids[node] == proposal.token_ids[before]
                    chance = float(drawn_from(proposal, node, target.vocab_size).square().sum())
                    expected, variance = expected + chance, variance + chance * (1 - chance)
                last_child[parent] = node
        assert abs(equal - expected) <= LIMIT * math.sqrt(variance) + 1e-6

    def test_all_chance_comes_from_the_numbers_given(self, sample_afresh: FewSampler) -> None:
        """The same numbers draft the same, whatever the random state of the process."""
        torch.manual_seed(1)
        first = sample_afresh(SAMPLINGS["temperature"], FEW_DRAWS)
        torch.manual_seed(2)
        second = sample_afresh(SAMPLINGS["temperature"], FEW_DRAWS)
        for proposal, again in zip(first, second, strict=True):
            require_equal(again, proposal, "the same numbers")

    @pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
    def test_verified_drafts_leave_the_targets_distribution(
        self,
        sample: Sampler,
        engine: ReferenceEngine,
        place: DraftRequest,
        sampling: Sampling,
    ) -> None:
        """Monte Carlo over the first two tokens that verification commits, against exact shares."""
        committed = place.token_ids.tolist()

        def logits_after(drafted: Sequence[int]) -> Tensor:
            # What comes after two tokens is not looked at.
            known = engine.reference.rows([*committed, *drafted[:1]]).logits[-1]
            return known if len(drafted) < 2 else torch.zeros_like(known)

        generator = torch.Generator().manual_seed(4)
        answers = []
        for proposal in sample(sampling):
            accepted = verify(proposal, logits_after, sampling, generator)
            tokens = [int(proposal.token_ids[node]) for node in accepted.path]
            tokens.append(accepted.bonus_token)
            if len(tokens) == 1:
                following = distribution(logits_after(tokens), sampling)
                tokens.append(int(torch.multinomial(following, 1, generator=generator)))
            answers.append((tokens[0], tokens[1]))
        assert misfit(answers, exact_pairs(logits_after, sampling)) < LIMIT


def sampled_only(proposals: Sequence[Proposal]) -> list[Proposal]:
    """Return the proposals that were sampled; skip the test if none was."""
    sampled = [proposal for proposal in proposals if proposal.drawn_from is not None]
    if not sampled:
        pytest.skip("the speculator never samples")
    return sampled


def exact_pairs(
    logits_after: Callable[[Sequence[int]], Tensor], sampling: Sampling
) -> Mapping[tuple[int, ...], float]:
    """Return how likely the target makes each pair of tokens.

    Pairs that begin with a negligible token stand as this token alone, with the share of them all.
    """
    exact: dict[tuple[int, ...], float] = {}
    for first, share in enumerate(distribution(logits_after([]), sampling).tolist()):
        if share < NEGLIGIBLE:
            exact[first,] = share
            continue
        following = distribution(logits_after([first]), sampling).tolist()
        exact |= {(first, second): share * chance for second, chance in enumerate(following)}
    return {pair: share for pair, share in exact.items() if share}
