"""Real weights, spoiled on purpose: what the held-out replay says of them, and the judges."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from aurora_core.config import GuardSection
from aurora_core.learner.holdout import HoldoutReplay, compare
from aurora_core.policies import CanaryOptions, CanarySwap, Guard, HoldoutGate, HoldoutOptions
from aurora_core.records import DraftVersion, Evidence
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.toy_speculator import ToySpeculator


@pytest.fixture
def trained(speculator: ToySpeculator, weights: TargetWeights, make_trace: Any) -> nn.Module:
    """A drafter that is right about half of the time."""
    torch.manual_seed(0)
    traces = [make_trace(seed) for seed in range(12)]
    module = speculator.build_module(weights, traces)
    optimizer = torch.optim.Adam([w for w in module.parameters() if w.requires_grad], lr=0.02)
    batch = speculator.collate(traces)
    for _ in range(25):
        output = speculator.loss(module, batch)
        optimizer.zero_grad()
        (output.loss_sum / output.weight_sum).backward()
        optimizer.step()
    return module


def each_matrix(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[nn.Module], None]:
    def spoil(module: nn.Module) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.copy_(change(parameter))

    return spoil


POISONS = {
    "noise": each_matrix(lambda w: torch.randn_like(w) * w.std()),
    "noise on top": each_matrix(lambda w: w + 4 * torch.randn_like(w) * w.std()),
    "shuffled": each_matrix(lambda w: w.flatten()[torch.randperm(w.numel())].view_as(w)),
    "turned round": each_matrix(torch.neg),
    "zeros": each_matrix(torch.zeros_like),
}


def judged(
    policy: Any, replay: HoldoutReplay, candidate: nn.Module, live: nn.Module, traces: Any
) -> str:
    scores, live_scores = replay.score(candidate, traces), replay.score(live, traces)
    holdout = compare(scores, live_scores, live_version=1)
    drafts = [
        DraftVersion(
            version=version, path="p", parent=None, speculator="toy", target_fingerprint="f",
            global_step=1, num_tokens_trained=1, created=0.0, checksum="", holdout=replayed,
        )
        for version, replayed in ((1, None), (2, holdout))
    ]  # fmt: skip
    evidence = Evidence(
        candidate=drafts[1], live=drafts[0], previous=None, serving=(),
        num_requests_since_swap=50, seconds_since_swap=math.inf, can_route=True,
    )  # fmt: skip
    verdict = Guard(policy, GuardSection()).decide(evidence)
    return str(verdict.action)


@pytest.mark.parametrize("poison", POISONS)
def test_spoiled_weights_are_neither_promoted_nor_tried_on_requests(
    poison: str, speculator: ToySpeculator, trained: nn.Module, make_trace: Any
) -> None:
    torch.manual_seed(1)
    traces = [make_trace(seed) for seed in range(20, 36)]
    replay = HoldoutReplay(speculator, num_speculative_tokens=3, batch_traces=4)
    spoiled = copy.deepcopy(trained)
    POISONS[poison](spoiled)
    gate = HoldoutGate(HoldoutOptions())
    canary = CanarySwap(CanaryOptions())
    assert judged(gate, replay, spoiled, trained, traces) == "hold"
    assert judged(canary, replay, spoiled, trained, traces) == "drop"
    # The other way round the same judges promote: it is the weights that they look at.
    assert judged(gate, replay, trained, spoiled, traces) == "promote"
    assert judged(canary, replay, trained, spoiled, traces) == "canary"


def test_replay_carries_tenant_and_route(
    speculator: ToySpeculator, trained: nn.Module, make_trace: Any
) -> None:
    import dataclasses

    traces = [
        dataclasses.replace(make_trace(seed), route=route)
        for seed, route in ((1, "sql"), (2, "math"))
    ]
    replay = HoldoutReplay(speculator, num_speculative_tokens=3, batch_traces=4)
    scores = replay.score(trained, traces)
    holdout = compare(scores, None, live_version=None)
    assert holdout is not None
    assert (holdout.routes, holdout.tenants) == (("sql", "math"), ())
