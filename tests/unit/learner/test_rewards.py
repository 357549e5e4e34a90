"""Rewards, returns and advantages, against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch

from aurora_core.learner.rewards import (
    Advantage,
    RewardCurve,
    Rewards,
    advantage,
    request_return,
    rewards_by_version,
    step_rewards,
)
from aurora_core.records import NO_DRAFTER, Holdout, TargetSpec, Trace
from aurora_core.testing.toy_run import make_learnable_trace, make_toy_plan, write_traces
from aurora_core.testing.traces import make_trace


def served(accepted: list[int], versions: list[int]) -> Trace:
    """Return a trace of which only the steps matter."""
    trace = make_trace(0, num_steps=len(accepted), version=NO_DRAFTER)
    steps = dataclasses.replace(
        trace.steps, num_accepted=torch.tensor(accepted), version=torch.tensor(versions)
    )
    return dataclasses.replace(trace, steps=steps)


def test_a_step_is_rewarded_with_its_accepted_tokens() -> None:
    trace = served([2, 0, 3, 0], [4, 4, 5, NO_DRAFTER])
    assert step_rewards(trace).tolist() == [2, 0, 3, 0]
    assert request_return(trace) == 5


def test_of_a_tree_the_accepted_path_is_rewarded() -> None:
    trace = make_trace(3, topology="tree", num_steps=8, accept=0.7)
    assert request_return(trace) == int(trace.nodes.accepted.sum()) > 0
    assert len(trace.nodes.token) > 2 * request_return(trace) > 0


def test_each_step_counts_for_the_version_that_drafted_it() -> None:
    trace = served([2, 0, 0, 3, 1], [5, NO_DRAFTER, 5, 4, 4])
    assert rewards_by_version(trace) == {4: Rewards(2, 4), 5: Rewards(2, 2)}
    assert list(rewards_by_version(trace)) == [4, 5]
    assert rewards_by_version(served([0], [NO_DRAFTER])) == {}


def test_a_curve_adds_up_by_version_and_reports_what_is_new() -> None:
    curve = RewardCurve()
    assert curve.metrics() == {}
    curve.add(served([1, 2], [1, 1]))
    curve.add(served([0, 3, 1], [1, 2, NO_DRAFTER]))
    curve.add(served([0, 0], [NO_DRAFTER, NO_DRAFTER]))
    # Steps with drafts: 1, 2, 0 of version 1 and 3 of version 2; returns 3 and 4.
    assert curve.metrics() == {
        "reward/per_step": 1.5,
        "reward/return": 3.5,
        "reward/version_1": 1.0,
        "reward/version_2": 3.0,
    }
    curve.begin_window()
    assert curve.metrics() == {}
    curve.add(served([1], [2]))
    assert curve.metrics() == {
        "reward/per_step": 1.0,
        "reward/return": 1.0,
        "reward/version_2": 2.0,
    }


def test_a_resumed_curve_goes_on() -> None:
    curve, resumed = RewardCurve(), RewardCurve()
    curve.add(served([1, 3], [7, 7]))
    resumed.load_state_dict(json.loads(json.dumps(curve.state_dict())))
    resumed.add(served([2], [7]))
    assert resumed.metrics()["reward/version_7"] == 2.0


def test_a_curve_forgets_the_oldest_versions_only() -> None:
    curve = RewardCurve()
    for version in range(300):
        curve.add(served([version], [version]))
    remembered = {int(version) for version in curve.state_dict()}
    assert remembered == set(range(300 - 256, 300))
    assert "reward/version_299" in curve.metrics() and "reward/version_0" not in curve.metrics()


def replay(live_version: int | None, *traces: tuple[int, int, int]) -> Holdout:
    """Return a replay from (anchors, accepted by the candidate, accepted by the live one)."""
    return Holdout(
        live_version=live_version,
        num_anchors=tuple(anchors for anchors, _, _ in traces),
        candidate_accepted=tuple((ours, 0) for _, ours, _ in traces),
        live_accepted=tuple((theirs, 0) for _, _, theirs in traces) if live_version else (),
    )


def test_the_advantage_is_the_gain_per_position_with_its_error_over_traces() -> None:
    # Gained 4 of 10 and -1 of 5 positions: mean 3 / 15. Residuals 4 - 2 and -1 - 1.
    found = advantage(replay(3, (10, 9, 5), (5, 1, 2)))
    assert found is not None
    assert found.mean == pytest.approx(0.2)
    assert found.error == pytest.approx(math.sqrt(2 / 1 * (4 + 4)) / 15)
    # A trace without positions says nothing.
    assert advantage(replay(3, (10, 9, 5), (0, 0, 0), (5, 1, 2))) == found


def test_equal_gains_have_no_error_and_one_trace_has_no_estimate_of_it() -> None:
    assert advantage(replay(1, (4, 3, 1), (4, 2, 0), (4, 4, 2))) == Advantage(0.5, 0.0)
    alone = advantage(replay(1, (4, 3, 1)))
    assert alone is not None and alone.mean == 0.5 and math.isnan(alone.error)


def test_nothing_is_compared_without_a_live_version_or_positions() -> None:
    assert advantage(replay(None, (4, 3, 0))) is None
    assert advantage(replay(2, (0, 0, 0))) is None


def test_the_error_is_that_of_repeated_draws() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> Advantage:
        anchors = torch.randint(5, 40, (30,), generator=generator)
        gained = (anchors * (0.2 + 0.3 * torch.randn(30, generator=generator))).round().long()
        rows = [
            (int(number), 1000 + int(gain), 1000)
            for number, gain in zip(anchors, gained, strict=True)
        ]
        found = advantage(replay(1, *rows))
        assert found is not None
        return found

    draws = [draw() for _ in range(400)]
    means = torch.tensor([found.mean for found in draws])
    errors = torch.tensor([found.error for found in draws])
    assert float(errors.mean()) == pytest.approx(float(means.std()), rel=0.12)


def test_the_learner_reports_rewards_by_version(
    learn: Any, target: TargetSpec, tmp_path: Any
) -> None:
    plan = make_toy_plan(tmp_path, target, max_steps=20, publish_every_steps=5)
    traces = [make_learnable_trace(seed, target, version=1 + seed % 2) for seed in range(16)]
    write_traces(tmp_path / "spool", traces)
    recorder = learn(plan)
    # Nothing was accepted in these traces.
    expected = dict.fromkeys(
        ("reward/per_step", "reward/return", "reward/version_1", "reward/version_2"), 0.0
    )
    reported = [event.metrics for event in recorder.of("progress")]
    assert any(expected.items() <= metrics.items() for metrics in reported)
    assert "reward/return" in recorder.of("published")[0].version.metrics


def test_a_version_carries_its_advantage_over_the_live_one(
    store_of: Any, learn: Any, make_plan: Any
) -> None:
    first = make_plan("run", max_steps=5)
    assert "holdout/advantage" not in learn(first).of("published")[0].version.metrics
    plan = make_plan("run", max_steps=40, initial_version=store_of(first).read(1))
    metrics = learn(plan).of("published")[-1].version.metrics
    gain = metrics["holdout/acceptance_length"] - metrics["holdout/live_acceptance_length"]
    assert metrics["holdout/advantage"] == pytest.approx(gain) and gain > 0
    assert 0 < metrics["holdout/advantage_error"] < gain
