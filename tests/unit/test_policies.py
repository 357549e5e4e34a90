"""Swap policies: what they promote, what they hold, and what they say about it."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from aurora_core.interfaces import Options
from aurora_core.policies import (
    AlwaysSwap,
    HoldoutGate,
    HoldoutOptions,
    IntervalOptions,
    IntervalSwap,
    gain_lower_bound,
)
from aurora_core.records import DraftVersion, Evidence, Holdout


def draft(version: int, holdout: Holdout | None = None, **metrics: float) -> DraftVersion:
    return DraftVersion(
        version=version,
        path=f"v{version}",
        parent=None,
        speculator="toy",
        target_fingerprint="target",
        global_step=1,
        num_tokens_trained=1,
        created=0.0,
        checksum="",
        metrics=metrics,
        holdout=holdout,
    )


def evidence(
    candidate: DraftVersion, live: int | None = 1, *, requests: int = 0, seconds: float = 0.0
) -> Evidence:
    return Evidence(
        candidate=candidate,
        live=draft(live) if live is not None else None,
        previous=None,
        serving=(),
        num_requests_since_swap=requests,
        seconds_since_swap=seconds,
    )


def replay(
    candidate: list[int], live: list[int] | None, *, anchors: int = 100, version: int | None = 1
) -> Holdout:
    """Two draft positions; the counts given are those of the first, half of them reach the next."""

    def spread(counts: list[int]) -> tuple[tuple[int, ...], ...]:
        return tuple((count, count // 2) for count in counts)

    return Holdout(
        live_version=version if live is not None else None,
        num_anchors=(anchors,) * len(candidate),
        candidate_accepted=spread(candidate),
        live_accepted=spread(live) if live is not None else (),
    )


def gate(**options: float) -> HoldoutGate:
    return HoldoutGate(HoldoutOptions(**options))


def test_always_promotes():
    verdict = AlwaysSwap(Options()).decide(evidence(draft(2)))
    assert (verdict.action, verdict.reason) == ("promote", "version 2 is complete")


@pytest.mark.parametrize(
    ("requests", "seconds", "action", "reason"),
    [
        (9, 99.0, "hold", "version 1 has served 9 requests of at least 10"),
        (10, 59.0, "hold", "version 1 has served 10 requests for 59 of at least 60 s"),
        (10, 60.0, "promote", "version 2 is complete and version 1 has served 10 requests for 60"),
    ],
)
def test_interval_waits_for_requests_and_seconds(requests, seconds, action, reason):
    policy = IntervalSwap(IntervalOptions(min_requests=10, min_seconds=60))
    verdict = policy.decide(evidence(draft(2), requests=requests, seconds=seconds))
    assert verdict.action == action
    assert verdict.reason.startswith(reason)
    assert verdict.numbers == {"requests_since_swap": requests, "seconds_since_swap": seconds}


def test_interval_promotes_a_first_version_at_once():
    verdict = IntervalSwap(IntervalOptions()).decide(evidence(draft(1), None))
    assert verdict.action == "promote"
    assert "no drafter is live" in verdict.reason


def test_gate_promotes_a_sure_gain_and_says_by_how_much():
    holdout = replay([60, 62, 58, 61, 59, 60], [40, 41, 39, 42, 38, 40])
    verdict = gate().decide(evidence(draft(2, holdout)))
    assert verdict.action == "promote"
    assert verdict.numbers["candidate_acceptance_length"] == pytest.approx(1.9, abs=0.01)
    assert verdict.numbers["live_acceptance_length"] == pytest.approx(1.6, abs=0.01)
    assert verdict.numbers["gain"] == pytest.approx(0.3, abs=0.01)
    assert 0.25 < verdict.numbers["gain_lower_bound"] <= verdict.numbers["gain"]
    assert verdict.reason.startswith(
        "version 2 has acceptance length 1.90 on 6 held-out traces against 1.60 of version 1: "
        "the gain is at least +0."
    )


def test_gate_holds_a_gain_that_one_lucky_trace_makes():
    holdout = replay([90, 40, 40, 40, 40, 39], [40, 41, 41, 41, 41, 40])
    verdict = gate().decide(evidence(draft(2, holdout)))
    assert verdict.numbers["gain"] > 0 > verdict.numbers["gain_lower_bound"]
    assert verdict.action == "hold"
    assert "with 90% confidence, not above 0" in verdict.reason


def test_gate_pairs_the_traces():
    """A small gain on every trace counts, however much traces differ from each other."""
    live = [5, 95, 20, 80, 50, 10]
    verdict = gate().decide(evidence(draft(2, replay([count + 2 for count in live], live))))
    assert verdict.action == "promote"


def test_identical_drafter_is_held():
    counts = [50, 60, 55, 40]
    assert gate().decide(evidence(draft(2, replay(counts, counts)))).action == "hold"


def test_min_gain_must_be_exceeded():
    live = [40, 50, 60, 50]
    holdout = replay([count + 10 for count in live], live)
    assert gate(min_gain=0.1).decide(evidence(draft(2, holdout))).action == "promote"
    assert gate(min_gain=0.2).decide(evidence(draft(2, holdout))).action == "hold"


@pytest.mark.parametrize(("counts", "action"), [([20] * 4, "promote"), ([15] * 4, "hold")])
def test_first_version_must_reach_break_even(counts, action):
    verdict = gate().decide(evidence(draft(1, replay(counts, None)), None))
    assert verdict.action == action
    assert "drafting pays from 1.25" in verdict.reason


def test_too_few_traces_are_held():
    verdict = gate(min_traces=5).decide(evidence(draft(2, replay([60] * 4, [10] * 4))))
    assert verdict.action == "hold"
    assert verdict.reason == "version 2 was scored on 4 held-out traces, fewer than 5"
    empty = Holdout(live_version=1, num_anchors=(), candidate_accepted=(), live_accepted=())
    assert gate(min_traces=1).decide(evidence(draft(2, empty))).action == "hold"


def test_traces_without_anchors_count_for_nothing():
    holdout = replay([60, 60, 60, 60], [10, 10, 10, 10])
    padded = Holdout(
        live_version=1,
        num_anchors=(*holdout.num_anchors, 0),
        candidate_accepted=(*holdout.candidate_accepted, (0, 0)),
        live_accepted=(*holdout.live_accepted, (0, 0)),
    )
    one, other = (gate().decide(evidence(draft(2, data))) for data in (holdout, padded))
    assert one == other


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_metrics_are_refused(value):
    candidate = dataclasses.replace(
        draft(2, replay([60] * 4, [10] * 4)), metrics={"train/loss": value}
    )
    verdict = gate().decide(evidence(candidate))
    assert (verdict.action, verdict.reason) == ("hold", f"version 2 has a 'train/loss' of {value}")


@pytest.mark.parametrize(
    ("holdout", "reason"),
    [
        (None, "version 2 was not scored"),
        (replay([60] * 4, [1] * 4, version=7), "compared with version 7, but version 1 is live"),
        (replay([60] * 4, None), "compared with no drafter, but version 1 is live"),
        (replay([60] * 4, [1] * 3), "has 3 counts for 4 traces"),
        (replay([101] * 4, [1] * 4), "accepted 101 drafts of one depth at 100 anchors"),
    ],
)
def test_replay_that_compares_something_else_is_held(holdout, reason):
    verdict = gate().decide(evidence(draft(2, holdout)))
    assert verdict.action == "hold"
    assert reason in verdict.reason


def test_replay_beside_a_drafter_that_is_switched_off_is_judged_as_a_first_version():
    verdict = gate().decide(evidence(draft(2, replay([30] * 4, [50] * 4)), None))
    assert verdict.action == "promote"
    assert "drafting pays from" in verdict.reason


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12),
    st.integers(0, 3),
)
def test_equal_evidence_gives_an_equal_verdict(counts, seed):
    holdout = replay([one for one, _ in counts], [other for _, other in counts])
    case = evidence(draft(2, holdout))
    first, second = gate(seed=seed).decide(case), gate(seed=seed).decide(case)
    assert first == second
    assert first.reason and all(math.isfinite(value) for value in first.numbers.values())
    assert "\n" not in first.reason


def test_bound_weighs_traces_by_their_anchors():
    """An equal gain per anchor has no spread, however unequal the traces are."""
    anchors = np.array([10, 400, 2, 90])
    bound = gain_lower_bound(anchors // 2, anchors, confidence=0.9, num_resamples=200, seed=0)
    assert bound == pytest.approx(0.5)


def test_bound_covers_the_true_gain_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for seed in range(300):
        anchors = random.integers(50, 150, size=30)
        gained = random.binomial(anchors, 0.5) - random.binomial(anchors, 0.4)
        bound = gain_lower_bound(gained, anchors, confidence=0.9, num_resamples=300, seed=seed)
        covered += bound <= 0.1
    assert 0.84 < covered / 300 < 0.95


@pytest.mark.parametrize(
    "options",
    [{"confidence": 1.0}, {"confidence": 0.4}, {"min_traces": 0}, {"mingain": 0.1}],
)
def test_unfit_options_are_refused(options):
    with pytest.raises(ValidationError):
        HoldoutOptions(**options)


def test_policies_import_without_torch():
    code = "import sys, aurora_core.policies, aurora_core.versions; print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.stdout.strip() == "False", output.stderr
