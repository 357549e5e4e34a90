"""Page-Hinkley: an alarm on a fall, and none on noise, on a rise or on a level."""

import numpy as np
import pytest

from aurora_core.controller.drift import PageHinkley

THRESHOLD = 30.0


def scores(values):
    detector = PageHinkley()
    found = []
    for value in values:
        detector.observe(value)
        found.append(detector.score)
    return found


def test_a_fall_is_noticed_within_a_few_dozen_requests():
    generator = np.random.default_rng(0)
    before, after = generator.normal(2.4, 0.3, 100), generator.normal(1.8, 0.3, 60)
    found = scores([*before, *after])
    assert max(found[:100]) < THRESHOLD
    first = next(index for index, score in enumerate(found) if score >= THRESHOLD)
    assert 100 < first < 130


@pytest.mark.parametrize("seed", range(10))
def test_steady_traffic_gives_no_alarm(seed):
    values = np.random.default_rng(seed).normal(2.4, 0.3, 1500)
    assert max(scores(values)) < THRESHOLD


def test_a_rise_is_no_drift():
    values = np.random.default_rng(1).normal(1.5, 0.2, 100)
    assert max(scores([*values, *(values + 1.0)])) < THRESHOLD


def test_equal_values_have_no_score_and_a_fall_after_them_has():
    level = scores([2.0] * 100)
    assert level[-1] == 0.0
    assert scores([2.0] * 50 + [1.5] * 20)[-1] > THRESHOLD


def test_nothing_is_said_during_the_warm_up():
    detector = PageHinkley(warm_up=5)
    for value in (9.0, 1.0, 1.0, 1.0):
        detector.observe(value)
    assert detector.score == 0.0 and not detector.is_ready
