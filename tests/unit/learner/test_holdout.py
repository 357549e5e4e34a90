from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from aurora_core.learner.holdout import HoldoutReplay, Score, compare
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.toy_speculator import ToySpeculator


@pytest.fixture
def replay(speculator: ToySpeculator) -> HoldoutReplay:
    return HoldoutReplay(speculator, num_speculative_tokens=3, batch_traces=2)


@pytest.fixture
def drafter(speculator: ToySpeculator, weights: TargetWeights, make_trace: Any) -> nn.Module:
    torch.manual_seed(0)
    return speculator.build_module(weights, [make_trace(0)])


def test_scores_do_not_depend_on_batching(
    replay: HoldoutReplay, drafter: nn.Module, make_trace: Any
) -> None:
    traces = [make_trace(seed, num_tokens=10 + seed) for seed in range(5)]
    together = replay.score(drafter, traces)
    assert list(together) == [trace.trace_id for trace in traces]
    for trace in traces:
        assert replay.score(drafter, [trace]) == {trace.trace_id: together[trace.trace_id]}
    assert [score.num_anchors for score in together.values()] == [5, 6, 7, 8, 9]


def test_unusable_traces_are_left_out(
    replay: HoldoutReplay, drafter: nn.Module, make_trace: Any
) -> None:
    good, bad = make_trace(0), make_trace(1, last_hidden_state=float("inf"))
    assert list(replay.score(drafter, [bad, good])) == [good.trace_id]


def test_scoring_leaves_the_module_as_it_was(
    replay: HoldoutReplay, drafter: nn.Module, make_trace: Any
) -> None:
    drafter.train()
    replay.score(drafter, [make_trace(0)])
    assert drafter.training
    assert all(parameter.grad is None for parameter in drafter.parameters())


def test_a_published_version_is_scored_once_on_each_trace(
    replay: HoldoutReplay, drafter: nn.Module, make_trace: Any
) -> None:
    traces = [make_trace(seed) for seed in range(4)]
    loads: list[int] = []

    def load() -> nn.Module:
        loads.append(1)
        return drafter

    scores = replay.score(drafter, traces[:3])
    replay.remember(7, scores)
    assert replay.version_scores(7, load, traces[:3]) == scores and not loads
    assert set(replay.version_scores(7, load, traces[1:])) == {t.trace_id for t in traces[1:]}
    assert len(loads) == 1
    replay.version_scores(7, load, traces[1:])
    assert len(loads) == 1


def test_only_the_latest_versions_are_remembered(replay: HoldoutReplay) -> None:
    for version in range(40):
        replay.remember(version, {"a": Score(1, (1, 0, 0))})
    assert len(replay._known) == 16 and 39 in replay._known


def test_both_drafters_are_compared_on_the_same_traces() -> None:
    candidate = {"a": Score(4, (3, 1)), "b": Score(2, (2, 2)), "c": Score(1, (0, 0))}
    live = {"c": Score(1, (1, 0)), "a": Score(4, (2, 1))}
    holdout = compare(candidate, live, live_version=5)
    assert holdout is not None
    assert holdout.live_version == 5
    assert holdout.num_anchors == (4, 1)
    assert holdout.candidate_accepted == ((3, 1), (0, 0))
    assert holdout.live_accepted == ((2, 1), (1, 0))


def test_without_a_live_drafter_the_candidate_stands_alone() -> None:
    holdout = compare({"a": Score(4, (3, 1))}, None, live_version=None)
    assert holdout is not None and holdout.live_accepted == () and holdout.live_version is None


def test_nothing_in_common_is_no_evidence() -> None:
    assert compare({}, None, live_version=None) is None
    assert compare({"a": Score(1, (1,))}, {"b": Score(1, (1,))}, live_version=1) is None
