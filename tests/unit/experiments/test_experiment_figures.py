"""Windows, intervals, recoveries and comparisons, on numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from aurora_core.experiments.comparison import (
    compare_outputs,
    differences,
    speed_ratio,
    time_below,
)
from aurora_core.experiments.figures import (
    blocks,
    columns,
    curve,
    pooled,
    recoveries,
    summarise,
)
from aurora_core.experiments.results import Event
from aurora_core.experiments.summary import median_recovery, summarise_stream
from aurora_core.experiments.table import as_markdown
from tests.unit.experiments.hand_made import figures, result


def test_window_weighs_requests_by_their_steps_and_leaves_failed_ones_out():
    requests = [
        figures(0, accepted=10, steps=10, otps=10.0),
        figures(1, accepted=0, steps=30, otps=30.0),
        figures(2, error="timeout"),
    ]
    found = summarise(columns(requests))
    assert found.length.estimate == pytest.approx(1.25)
    assert found.otps.estimate == pytest.approx(20.0)
    assert found.length.lower == 1.0 and found.length.upper == 2.0
    assert summarise(columns([figures(0, error="timeout")])).length is None


def test_curve_has_one_window_for_each_size_and_a_shorter_last_one():
    requests = [figures(index, accepted=index) for index in range(5)]
    windows = curve(columns(requests), 2)
    assert [(one.first, one.end) for one in windows] == [(0, 2), (2, 4), (4, 5)]
    assert [one.length.estimate for one in windows] == pytest.approx([1.05, 1.25, 1.4])


def test_window_holds_the_same_places_of_every_seed():
    results = [
        result([figures(0, accepted=0), figures(1, accepted=20)], seed=0),
        result([figures(0, accepted=10), figures(1, accepted=0)], seed=1),
    ]
    windows = curve(pooled(results), 1)
    assert [one.length.estimate for one in windows] == pytest.approx([1.5, 2.0])


def test_interval_of_equal_requests_is_a_point_and_of_unequal_ones_is_not():
    equal = summarise(columns([figures(index) for index in range(20)])).length
    assert equal.lower == equal.upper == equal.estimate == 2.0
    unequal = summarise(columns([figures(i, accepted=5 * (i % 5)) for i in range(20)])).length
    assert unequal.lower < unequal.estimate < unequal.upper


def shifted(accepted_after, *, seed=0, arm="gate"):
    """30 requests of one domain, then as many of another as there are numbers."""
    return result(
        [
            *(figures(index, accepted=20) for index in range(30)),
            *(
                figures(30 + index, accepted=accepted, domain="math")
                for index, accepted in enumerate(accepted_after)
            ),
        ],
        seed=seed,
        arm=arm,
    )


def test_recovery_is_counted_from_the_shift_to_nine_tenths_of_the_new_plateau():
    [found] = recoveries(shifted([0] * 20 + [10] * 30))
    assert (found.domain, found.plateau) == ("math", pytest.approx(2.0))
    # The mean of the latest ten reaches 1.8 with eight of the better ones.
    assert found.num_requests == 28
    assert found.seconds == pytest.approx(28.0)


def test_arm_that_falls_to_its_plateau_was_there_from_the_start():
    [found] = recoveries(shifted([10] * 40))
    assert found.num_requests == 10


def test_blocks_are_runs_of_one_domain():
    assert blocks(shifted([1] * 5).requests) == [(0, 30), (30, 35)]
    assert blocks([]) == []


def test_arm_that_accepts_less_in_one_window_is_surely_below_there_and_only_there():
    static = [shifted([10] * 50, arm="static")]
    worse = [shifted([0] * 20 + [12] * 30)]
    found = time_below(worse, static, size=10)
    assert found.num_windows == 36 and found.requests_below == 20
    assert found.seconds_below == pytest.approx(20.0)
    # Windows begin two requests apart; those from 22 to 48 hold some of the worse ones.
    assert found.num_surely_below <= found.num_below == 14
    assert (found.worst.first, found.worst.length.estimate) == (30, pytest.approx(-1.0))
    assert time_below(static, static, size=10).num_below == 0


def test_what_the_measured_share_without_speculation_costs_is_not_held_against_the_drafters():
    static = [result([figures(index, draft_version=8) for index in range(40)], arm="static")]
    plain = (3, 17)
    ours = [
        result(
            [
                figures(index, accepted=0, draft_version=-1)
                if index in plain
                else figures(index, draft_version=9)
                for index in range(40)
            ]
        )
    ]
    assert time_below(ours, static, size=10).num_below == 7
    drafted = time_below(ours, static, size=10, drafted_only=True)
    assert (drafted.num_below, drafted.num_windows) == (0, 16)


def test_pairs_alone_are_compared():
    ours = [result([figures(0, accepted=5), figures(1, accepted=20), figures(2, error="gone")])]
    theirs = [result([figures(0, accepted=5), figures(2, accepted=10)], arm="static")]
    [found] = differences(ours, theirs, size=3)
    assert found.length.estimate == 0.0
    other_seed = [result([figures(0)], arm="static", seed=7)]
    assert differences(ours, other_seed, size=3) == []


def test_speed_ratio_is_that_of_the_same_prompts():
    ours = [result([figures(index, otps=20.0 + index) for index in range(10)])]
    theirs = [result([figures(index, otps=2 * (20.0 + index)) for index in range(10)])]
    ratio = speed_ratio(ours, theirs, first=0, end=10)
    assert ratio == pytest.approx((0.5, 0.5, 0.5))
    assert speed_ratio(ours, theirs, first=50, end=60) is None


def test_different_output_is_found_by_seed_and_place():
    ours = [result([figures(0), figures(1, tokens=(1, 3)), figures(2, error="gone")], seed=4)]
    plain = [result([figures(index) for index in range(3)], seed=4, arm="none")]
    found = compare_outputs(ours, plain)
    assert (found.num_compared, found.different) == (2, ((4, 1),))


def references(otps):
    return [figures(0, otps=otps, domain="without speculation")]


def test_summary_divides_what_the_machine_did_out_of_a_speed():
    results = {
        "none": [result([figures(i, accepted=0) for i in range(20)], arm="none")],
        "static": [
            result(
                [figures(i, otps=10.0) for i in range(20)],
                arm="static",
                references=references(5.0),
            )
        ],
        "gate": [
            result(
                [figures(i, otps=30.0) for i in range(20)],
                references=references(10.0),
                events=[
                    Event(kind="promote", version=2, num_requests=3),
                    Event(kind="roll_back", version=1, num_requests=9),
                    Event(kind="drift", version=1, num_requests=11),
                ],
            )
        ],
    }
    found = summarise_stream("mixed", results, window=10)
    assert found.missing == ("ngram", "always", "scratch") and found.boundaries == ()
    by_name = {arm.arm: arm for arm in found.arms}
    gate = by_name["gate"]
    assert gate.last_against_static.estimate == pytest.approx(3.0)
    assert gate.last_speedup_against_static == pytest.approx(1.5)
    assert (gate.speedup, by_name["static"].speedup) == (3.0, 2.0)
    assert (gate.num_swaps, gate.num_rolled_back, gate.num_drifts) == (2, 1, 1)
    assert gate.outputs.num_compared == 20 and by_name["none"].outputs is None
    assert by_name["static"].below_static is None and by_name["none"].speedup is None


def test_ordered_stream_has_boundaries_recoveries_and_a_table_of_domains():
    found = summarise_stream(
        "ordered",
        {"gate": [shifted([0] * 20 + [10] * 30), shifted([10] * 50, seed=1)]},
        window=50,
    )
    assert found.boundaries == ((0, "sql"), (30, "math"))
    assert median_recovery(found.arms[0]) == (19, 19.0, 0)
    text = as_markdown([found])
    assert "| online, gate | 2.00 (28/10) |" in text
    assert "Not run: none, ngram, static, always, scratch." in text
