from __future__ import annotations

from aurora_core.learner.health import BadShare


def test_a_few_bad_outcomes_decide_nothing() -> None:
    health = BadShare(0.5, window=10, min_outcomes=4)
    for _ in range(3):
        health.record(is_bad=True)
    assert health.share == 1.0 and not health.exceeded


def test_the_limit_itself_is_allowed() -> None:
    health = BadShare(0.5, window=10, min_outcomes=4)
    for is_bad in (True, True, False, False):
        health.record(is_bad=is_bad)
    assert not health.exceeded
    health.record(is_bad=True)
    assert health.exceeded


def test_old_outcomes_leave_the_window() -> None:
    health = BadShare(0.5, window=4, min_outcomes=4)
    for is_bad in (True, True, True, True, False, False):
        health.record(is_bad=is_bad)
    assert health.share == 0.5 and not health.exceeded


def test_after_forgetting_it_starts_over() -> None:
    health = BadShare(0.5, window=4, min_outcomes=1)
    health.record(is_bad=True)
    health.forget()
    assert health.share == 0.0 and not health.exceeded
