"""Intervals: that they cover, and that looking often is honest."""

from __future__ import annotations

import numpy as np
import pytest

from aurora_core.confidence import (
    bootstrap_acceptance,
    match_strata,
    sample_of,
    sequential_ratio,
    sequential_width,
)
from aurora_core.serving_figures import Sample, TrafficSlice


def test_bootstrap_gives_each_position_its_mean_within_its_bounds():
    anchors = [100, 50, 80, 100]
    accepted = [[60, 30], [25, 10], [56, 20], [50, 25]]
    first, second = bootstrap_acceptance(anchors, accepted)
    assert first.estimate == pytest.approx(191 / 330)
    assert second.estimate == pytest.approx(85 / 330)
    for one in (first, second):
        assert 0 < one.lower < one.estimate < one.upper < 1


def test_bootstrap_is_the_same_for_the_same_seed_and_wider_for_more_confidence():
    anchors, accepted = [100] * 6, [[10], [90], [30], [70], [50], [45]]
    narrow = bootstrap_acceptance(anchors, accepted, confidence=0.5)
    assert narrow == bootstrap_acceptance(anchors, accepted, confidence=0.5)
    [wide] = bootstrap_acceptance(anchors, accepted, confidence=0.99)
    assert wide.lower < narrow[0].lower and narrow[0].upper < wide.upper


def test_bootstrap_covers_the_truth_as_often_as_it_says():
    generator, covered = np.random.default_rng(0), 0
    for repeat in range(200):
        rates = generator.beta(6, 4, size=24)
        accepted = generator.binomial(50, rates)[:, None]
        [one] = bootstrap_acceptance(
            [50] * 24, accepted, confidence=0.9, num_resamples=300, seed=repeat
        )
        covered += one.lower <= 0.6 <= one.upper
    assert 0.8 < covered / 200 < 0.97


@pytest.mark.parametrize("anchors", [[], [0, 0]])
def test_bootstrap_of_nothing_is_nothing(anchors):
    assert bootstrap_acceptance(anchors, [[0, 0]] * len(anchors)) == ()


def test_sample_of_values():
    assert sample_of([1.0, 3.0]) == Sample(count=2, mean=2.0, variance=2.0)
    assert sample_of([5.0]) == Sample(count=1, mean=5.0)
    assert sample_of([]) == Sample()


def test_sequential_ratio_finds_a_clear_difference_and_no_other():
    generator = np.random.default_rng(1)
    base = sample_of(generator.normal(2.0, 0.3, 60))
    better = sample_of(generator.normal(2.6, 0.3, 60))
    found = sequential_ratio([(better, base)], confidence=0.95)
    assert found.lower > 1.1 and found.lower < found.estimate < found.upper
    same = sequential_ratio([(sample_of(generator.normal(2.0, 0.3, 60)), base)], confidence=0.95)
    assert same.lower < 1 < same.upper


def test_looking_after_every_request_rarely_finds_what_is_not_there():
    generator, fooled = np.random.default_rng(2), 0
    for _ in range(60):
        above, below = generator.normal(2.0, 0.4, (2, 150))
        for seen in range(8, 151, 3):
            found = sequential_ratio(
                [(sample_of(above[:seen]), sample_of(below[:seen]))], confidence=0.95
            )
            if not found.lower <= 1 <= found.upper:
                fooled += 1
                break
    assert fooled <= 4  # a fixed interval at every look is fooled about 20 times


def test_strata_keep_a_change_of_load_from_looking_like_a_change_of_drafter():
    fast, slow = (
        Sample(count=20, mean=40.0, variance=4.0),
        Sample(count=20, mean=20.0, variance=1.0),
    )
    few_fast = Sample(count=2, mean=40.0, variance=4.0)
    pairs = [(few_fast, fast), (slow, slow)]
    found = sequential_ratio(pairs, confidence=0.95)
    assert found.estimate == pytest.approx(1.0)


def test_a_handful_of_equal_values_is_no_certainty():
    same = Sample(count=3, mean=2.0, variance=0.0)
    found = sequential_ratio([(same, same)], confidence=0.95)
    assert found.upper - found.lower > 0.05


def test_nothing_in_common_is_no_ratio():
    here = TrafficSlice(length=Sample(count=3, mean=2.0), otps=Sample(), tenant="a")
    there = TrafficSlice(length=Sample(count=3, mean=2.0), otps=Sample(), tenant="b")
    assert match_strata([here], [there], "length") == []
    assert sequential_ratio([], confidence=0.95) is None
    assert match_strata([here], [here], "length") == [(here.length, here.length)]


def test_the_price_of_looking_often_is_moderate():
    widths = [sequential_width(n, confidence=0.95) for n in (5, 20, 100)]
    assert min(widths) > 1.96 and max(widths) < 4.5
