"""Pure verdicts of the gate's price, the canary and the guard, on evidence made by hand."""

from __future__ import annotations

import math

import pytest

from aurora_core.config import GuardSection
from aurora_core.interfaces import Options
from aurora_core.policies import (
    AlwaysSwap,
    CanaryOptions,
    CanarySwap,
    Guard,
    HoldoutGate,
    HoldoutOptions,
)
from aurora_core.policies.gate import break_even, gain_by_label
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    Drift,
    Evidence,
    Holdout,
    Sample,
    ServingStats,
    SwapCost,
    SwitchedOff,
    TrafficSlice,
    Trial,
)


def draft(version, holdout=None, **metrics):
    return DraftVersion(
        version=version, path="p", parent=None, speculator="toy", target_fingerprint="f",
        global_step=1, num_tokens_trained=1, created=0.0, checksum="", metrics=metrics,
        holdout=holdout,
    )  # fmt: skip


def stats(version, *, requests=40, length=2.0, otps=50.0, step_s=0.02, spread=0.15, batch_size=1):
    def sample(mean):
        return Sample(count=requests, mean=mean, variance=(spread * mean) ** 2)

    cut = {"length": sample(length), "otps": sample(otps), "step_s": step_s}
    return ServingStats(
        version=version,
        num_requests=requests,
        num_output_tokens=50 * requests,
        acceptance_length=length,
        otps=otps,
        step_s=step_s,
        by_batch_size=(TrafficSlice(**cut, batch_size=batch_size),),
        by_label=(TrafficSlice(**cut),),
    )


def evidence(candidate, live=1, **fields):
    defaults = {
        "previous": None, "serving": (), "num_requests_since_swap": 40, "seconds_since_swap": 60.0,
    }  # fmt: skip
    live = None if live is None else draft(live)
    return Evidence(candidate=candidate, live=live, **(defaults | fields))


def review(**fields):
    """A review of live version 1."""
    return evidence(draft(1), **fields)


def guard(policy=None, **options):
    return Guard(policy or AlwaysSwap(Options()), GuardSection(**options))


def replay(candidate, live, **labels):
    return Holdout(
        live_version=1, num_anchors=(100,) * len(candidate),
        candidate_accepted=tuple((count,) for count in candidate),
        live_accepted=tuple((count,) for count in live), **labels,
    )  # fmt: skip


GAIN = replay([50, 51, 49, 50, 52, 50], [45, 46, 44, 45, 47, 45])


def test_gain_that_does_not_pay_for_its_swap_is_held():
    cost = SwapCost(num_swaps=3, stall_s=0.1, load_s=1.0)
    policy = HoldoutGate(HoldoutOptions(horizon_s=300))
    verdict = policy.decide(evidence(draft(2, GAIN), swap_cost=cost, since_swap=stats(1)))
    assert verdict.action == "promote"
    assert verdict.numbers["swap_cost_s"] == pytest.approx(0.6)
    assert verdict.numbers["saved_s"] == pytest.approx(300 * (1 - 1.45 / 1.5), rel=0.02)
    assert verdict.numbers["otps_gain_lower_bound"] == pytest.approx(50 * 0.05 / 1.45, rel=0.02)
    policy = HoldoutGate(HoldoutOptions(horizon_s=15))
    verdict = policy.decide(evidence(draft(2, GAIN), swap_cost=cost))
    assert verdict.action == "hold"
    assert verdict.reason.endswith(
        "; in 15 s that saves 0.50 s of decoding, but a swap costs 0.60 s"
    )


def test_first_version_must_reach_the_break_even_that_was_measured():
    serving = (stats(NO_DRAFTER, step_s=0.02), stats(3, step_s=0.034))
    first = Holdout(
        live_version=None, num_anchors=(100,) * 4, candidate_accepted=((60,),) * 4, live_accepted=()
    )
    found = evidence(draft(4, first), None, serving=serving)
    assert break_even(found) == pytest.approx(1.7)
    verdict = HoldoutGate(HoldoutOptions()).decide(found)
    assert verdict.action == "hold" and "drafting pays from 1.70" in verdict.reason
    assert HoldoutGate(HoldoutOptions()).decide(evidence(draft(4, first), None)).action == "promote"


def test_break_even_is_not_known_from_different_batch_sizes():
    serving = (stats(NO_DRAFTER, batch_size=1), stats(3, batch_size=8))
    assert break_even(evidence(draft(4), None, serving=serving)) is None


def test_gain_is_given_by_label_where_there_are_several():
    holdout = replay([50, 60], [40, 55], routes=("sql", "math"), tenants=("a", ""))
    assert gain_by_label(holdout) == {"gain_at_a/sql": 0.1, "gain_at_math": 0.05}
    assert gain_by_label(replay([50, 60], [40, 55])) == {}


def trial(challenger, live, share=0.1):
    return Trial(
        version=challenger.version, share=share, seconds=60.0, challenger=challenger, live=live
    )


def canary(**options):
    return CanarySwap(CanaryOptions(**options))


def test_canary_begins_with_a_share():
    verdict = canary(share=0.25).decide(evidence(draft(2)))
    assert (verdict.action, verdict.share) == ("canary", 0.25)


@pytest.mark.parametrize(
    ("length", "requests", "action", "words"),
    [
        (2.6, 40, "promote", "+30.0% tokens per step against version 1 in 40 requests, between"),
        (1.2, 40, "drop", "never above 0%"),
        (2.05, 40, "canary", "with 95% confidence"),
        (2.05, 100, "drop", "not surely better in 100 requests"),
        (2.6, 5, "canary", "has served 5 requests on trial beside 200 of version 1, too few"),
    ],
)
def test_canary_decides_by_a_sequential_test(length, requests, action, words):
    found = trial(stats(2, length=length, requests=requests), stats(1, requests=200))
    verdict = canary().decide(evidence(draft(2), trial=found))
    assert verdict.action == action and words in verdict.reason
    if requests > 8:
        numbers = verdict.numbers
        assert numbers["gain_lower_bound"] < numbers["gain"] < numbers["gain_upper_bound"]


def test_canary_against_no_drafter_measures_speed_and_not_acceptance():
    found = trial(stats(2, length=3.0, otps=40.0), stats(NO_DRAFTER, length=1.0, otps=60.0))
    verdict = canary().decide(evidence(draft(2), None, trial=found))
    assert verdict.action == "drop" and "tokens per second against no drafter" in verdict.reason


@pytest.mark.parametrize(("accepted", "action"), [(20, "drop"), (30, "canary")])
def test_first_version_that_learned_too_little_is_not_tried(accepted, action):
    first = Holdout(
        live_version=None, num_anchors=(100,), candidate_accepted=((accepted,),), live_accepted=()
    )
    assert canary().decide(evidence(draft(1, first), None)).action == action


@pytest.mark.parametrize(("accepted", "action"), [(80, "drop"), (52, "canary")])
def test_trial_ends_for_a_newer_version_that_is_surely_better(accepted, action):
    newer = draft(9, replay([accepted, accepted + 1, accepted - 1, accepted, accepted], [45] * 5))
    found = trial(stats(2, length=2.05), stats(1, requests=200))
    verdict = canary().decide(evidence(draft(2, GAIN), trial=found, waiting=newer))
    assert verdict.action == action
    if action == "drop":
        assert verdict.reason.endswith("of version 2, surely more: it is tried instead")


def test_canary_can_measure_speed():
    found = trial(stats(2, length=3.0, otps=40.0), stats(1, otps=60.0))
    assert canary(measure="otps").decide(evidence(draft(2), trial=found)).action == "drop"
    assert canary().decide(evidence(draft(2), trial=found)).action == "promote"


def test_canary_gives_up_on_a_drafter_that_the_engine_let_go_of():
    found = trial(stats(2, requests=0), stats(1, requests=300))
    verdict = canary().decide(evidence(draft(2), trial=found))
    assert verdict.action == "drop" and "the engine let go of it" in verdict.reason


def test_canary_ignores_the_trial_of_another_version():
    found = trial(stats(2, length=3.0), stats(1))
    assert (
        canary().decide(evidence(draft(3), trial=found)).reason.startswith("version 3 serves 10%")
    )


def test_version_with_a_metric_that_is_no_number_is_dropped():
    assert canary().decide(evidence(draft(2, loss=math.inf))).action == "drop"


def test_speculation_that_is_surely_slower_is_switched_off():
    slow = {"since_swap": stats(1, otps=40.0), "without_speculation": stats(NO_DRAFTER, otps=50.0)}
    verdict = guard().decide(review(**slow))
    assert verdict.action == "disable_speculation"
    assert "-20.0% output tokens per second against no speculation at equal" in verdict.reason
    assert verdict.numbers["speedup_upper_bound"] < 0
    assert guard(disable_speculation=False).decide(review(**slow)).action == "promote"


@pytest.mark.parametrize(
    "changes",
    [
        {"since_swap": stats(1, otps=49.0)},
        {"since_swap": stats(1, otps=40.0, requests=7)},
        {"since_swap": stats(1, otps=40.0, batch_size=8)},
        {"without_speculation": stats(NO_DRAFTER, requests=2)},
        {"without_speculation": None},
    ],
)
def test_speculation_stays_on_without_proof(changes):
    fields = {
        "since_swap": stats(1, otps=40.0),
        "without_speculation": stats(NO_DRAFTER, otps=50.0),
    } | changes
    assert guard().decide(review(**fields)).action == "promote"  # what `always` says


IDLE = {"length": 1.01, "spread": 0.01, "requests": 5}


def test_drafter_that_surely_accepts_next_to_nothing_is_off_before_anything_is_compared():
    verdict = guard().decide(review(since_swap=stats(1, **IDLE)))
    assert verdict.action == "disable_speculation"
    assert "makes 1.010 tokens per step, at most 1.04" in verdict.reason
    assert verdict.numbers["accepted_upper_bound"] < 0.05
    for options in ({"min_acceptance_length": 1}, {"disable_speculation": False}):
        found = review(since_swap=stats(1, **IDLE))
        assert guard(**options).decide(found).action == "promote"  # what `always` says


def test_version_on_probation_that_accepts_next_to_nothing_is_rolled_back_at_once():
    found = {
        "since_swap": stats(1, **IDLE), "serving": (stats(1, **IDLE), stats(2)), "stored": (1, 2),
    }  # fmt: skip
    verdict = guard().decide(review(previous=draft(3), **found))
    assert (verdict.action, verdict.version) == ("roll_back", 2)
    # What was itself rolled back to is switched off: two that accept nothing do not take turns.
    assert guard().decide(review(**found)).action == "disable_speculation"


@pytest.mark.parametrize(
    ("before", "previous", "action"),
    [(2.2, 2, "roll_back"), (2.2, None, "disable_speculation"), (2.0, 2, "disable_speculation")],
)
def test_version_that_is_too_slow_gives_way_to_the_better_one_that_it_took_over_from(
    before, previous, action
):
    """The better one need not be surely better: the other one goes anyway."""
    slow = stats(1, otps=40.0)
    found = review(
        since_swap=slow,
        without_speculation=stats(NO_DRAFTER, otps=50.0),
        serving=(slow, stats(2, length=before)),
        stored=(1, 2),
        previous=None if previous is None else draft(previous),
    )
    verdict = guard().decide(found)
    assert verdict.action == action
    assert verdict.version == (2 if action == "roll_back" else None)


@pytest.mark.parametrize("change", [{"requests": 2}, {"spread": 0.1}, {"length": 1.06}])
def test_drafter_stays_on_while_it_may_accept_something(change):
    found = review(since_swap=stats(1, **(IDLE | change)))
    assert guard().decide(found).action == "promote"


def test_trial_of_a_drafter_that_accepts_next_to_nothing_ends_early():
    again = Trial(
        version=2, share=0.05, seconds=9.0, challenger=stats(2, **IDLE), live=stats(NO_DRAFTER)
    )
    found = evidence(draft(2), None, switched_off=off(99), can_route=True, trial=again)
    verdict = guard().decide(found)
    assert verdict.action == "drop" and "brings nothing at any price" in verdict.reason
    assert verdict.reason.endswith("speculation stays off")


def test_version_on_probation_that_accepts_less_is_rolled_back_to_the_best_stored_one():
    serving = (stats(1, length=1.1), stats(2, length=2.2), stats(3, length=2.6), stats(4, length=3))
    found = review(since_swap=stats(1, length=1.1), serving=serving, stored=(1, 2, 3))
    verdict = guard().decide(found)
    assert (verdict.action, verdict.version) == ("roll_back", 3)  # version 4 is deleted


@pytest.mark.parametrize(
    "changes",
    [
        {"num_requests_since_swap": 101},
        {"since_swap": stats(1, length=1.98)},
        {"since_swap": stats(1, length=1.1, requests=7)},
        {"stored": (1,)},
        {"serving": (stats(1, length=1.1), stats(2, requests=7))},
    ],
)
def test_version_stays_that_is_past_probation_or_not_surely_worse(changes):
    fields = {
        "since_swap": stats(1, length=1.1),
        "serving": (stats(1, length=1.1), stats(2, length=2.0)),
        "stored": (1, 2),
    } | changes
    assert guard().decide(review(**fields)).action == "promote"


def drifting(share, tenant=""):
    return Drift(tenant=tenant, score=35.0, threshold=30.0, num_requests=80, share=share)


def test_drift_without_a_better_version_is_held_and_says_so():
    found = review(
        since_swap=stats(1), drift=(drifting(1.0),), num_requests_since_swap=500, stored=(1, 2),
        serving=(stats(1), stats(2, length=2.0)),
    )  # fmt: skip
    verdict = guard().decide(found)
    assert verdict.action == "hold" and "no stored version is known to do better" in verdict.reason


def test_drift_of_few_requests_moves_nobody():
    found = review(
        since_swap=stats(1), drift=(drifting(0.2, "small"),), num_requests_since_swap=500,
        stored=(1, 2), serving=(stats(2, length=3.0),),
    )  # fmt: skip
    verdict = guard().decide(found)
    assert verdict.action == "hold" and "but that is 20% of the requests" in verdict.reason


def off(seconds, num_times=1):
    return SwitchedOff(seconds=seconds, num_times=num_times)


@pytest.mark.parametrize(
    ("seconds", "times", "action"),
    [(59, 1, "hold"), (61, 1, "canary"), (119, 2, "hold"), (121, 2, "canary"), (3601, 9, "canary")],
)
def test_speculation_is_tried_again_after_a_pause_that_doubles(seconds, times, action):
    found = evidence(draft(2), None, switched_off=off(seconds, times), can_route=True)
    assert guard().decide(found).action == action


def test_engine_that_cannot_route_tries_on_all_requests():
    verdict = guard().decide(evidence(draft(2), None, switched_off=off(61)))
    assert verdict.action == "promote" and "cannot try it on a share" in verdict.reason


@pytest.mark.parametrize(
    ("otps", "requests", "action"),
    [(70.0, 20, "promote"), (40.0, 20, "drop"), (50.5, 20, "canary"), (50.5, 100, "drop"),
     (70.0, 5, "canary"), (70.0, 0, "drop")],
)  # fmt: skip
def test_retrial_switches_speculation_on_only_with_proof(otps, requests, action):
    found = evidence(
        draft(2), None, switched_off=off(90), can_route=True,
        trial=trial(stats(2, otps=otps, requests=requests), stats(NO_DRAFTER, requests=500)),
    )  # fmt: skip
    assert guard().decide(found).action == action


def test_unfit_version_is_not_even_tried_again():
    found = evidence(draft(2, loss=math.nan), None, switched_off=off(90), can_route=True)
    assert guard().decide(found).action == "drop"


def test_pinned_version_stays_whatever_the_evidence():
    slow = {"since_swap": stats(1, otps=40.0), "without_speculation": stats(NO_DRAFTER, otps=50.0)}
    assert guard().decide(review(**slow, pinned=True)).action == "hold"
    found = evidence(draft(2), None, pinned=True)
    assert guard().decide(found).reason.startswith("no drafter was made live by a person")
