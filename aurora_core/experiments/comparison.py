"""One arm beside another, request by request: the prompts are the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aurora_core.confidence import Interval, resample
from aurora_core.experiments.figures import Columns, bounds, columns
from aurora_core.experiments.results import ArmResult
from aurora_core.records import NO_DRAFTER

_NUM_RESAMPLES = 2000
_STRIDE_SHARE = 5
"""Windows begin a fifth of their size apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One window of two arms."""

    first: int
    end: int
    length: Interval
    """Acceptance length of the one less that of the other."""

    @property
    def is_surely_below(self) -> bool:
        """Whether the whole interval lies below 0."""
        return self.length.upper < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBelow:
    """How long an arm accepted less than another."""

    num_windows: int
    """Of all windows, which overlap by four fifths."""
    num_below: int
    """Those whose estimate is below."""
    num_surely_below: int
    """Those whose whole interval is below."""
    requests_below: int
    """Requests in windows, not overlapping, whose estimate is below; mean over seeds."""
    seconds_below: float
    """How long those took in the arm itself."""
    worst: Difference | None
    """The window with the lowest difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Are the answers of two arms the same, token by token?"""

    num_compared: int
    different: tuple[tuple[int, int], ...]
    """(seed, place) of each pair of answers that differ."""


def differences(
    ours: Sequence[ArmResult],
    theirs: Sequence[ArmResult],
    *,
    size: int,
    stride: int | None = None,
    drafted_only: bool = False,
) -> list[Difference]:
    """Compare window by window, over the seeds that both arms have.

    Args:
        ours: one arm, one result per seed.
        theirs: the other.
        size: requests of a window.
        stride: between the beginnings of two windows; a fifth of the size if not given.
        drafted_only: leave out requests that our arm answered without speculation, which it does
            to know how fast that is: what is compared then are the drafters.
    """
    ours_, theirs_ = _paired(ours, theirs, drafted_only=drafted_only)
    end = int(ours_.place.max(initial=-1)) + 1
    step = stride or max(size // _STRIDE_SHARE, 1)
    found = []
    for first in range(0, max(end - size, 0) + 1, step):
        one, other = (side.within(first, first + size) for side in (ours_, theirs_))
        difference = _length_difference(one, other)
        if difference is not None:
            found.append(Difference(first=first, end=min(first + size, end), length=difference))
    return found


def time_below(
    ours: Sequence[ArmResult],
    theirs: Sequence[ArmResult],
    *,
    size: int,
    drafted_only: bool = False,
) -> TimeBelow:
    """Return how long one arm accepted less than the other; see `differences`."""
    sliding = differences(ours, theirs, size=size, drafted_only=drafted_only)
    apart = differences(ours, theirs, size=size, stride=size, drafted_only=drafted_only)
    below = [one for one in apart if one.length.estimate < 0]
    return TimeBelow(
        num_windows=len(sliding),
        num_below=sum(one.length.estimate < 0 for one in sliding),
        num_surely_below=sum(one.is_surely_below for one in sliding),
        requests_below=sum(one.end - one.first for one in below),
        seconds_below=sum(_mean_duration(ours, one) for one in below),
        worst=min(sliding, key=lambda one: one.length.estimate, default=None),
    )


def speed_ratio(
    ours: Sequence[ArmResult], theirs: Sequence[ArmResult], *, first: int, end: int
) -> Interval | None:
    """Return OTPS of one arm / OTPS of the other over some places, bootstrapped over pairs."""
    one, other = (side.within(first, end) for side in _paired(ours, theirs))
    known = ~(np.isnan(one.otps) | np.isnan(other.otps))
    above, below = one.otps[known], other.otps[known]
    if not len(above):
        return None
    occurs = resample(len(above), num_resamples=_NUM_RESAMPLES, seed=0)
    return bounds(float(above.sum() / below.sum()), (occurs @ above) / (occurs @ below))


def compare_outputs(ours: Sequence[ArmResult], theirs: Sequence[ArmResult]) -> Outputs:
    """Compare the tokens of every answer that both arms gave."""
    others = {(one.seed, r.index): r for one in theirs for r in one.requests if not r.error}
    pairs = [
        ((one.seed, request.index), request, others[one.seed, request.index])
        for one in ours
        for request in one.requests
        if not request.error and (one.seed, request.index) in others
    ]
    different = [key for key, ours_, theirs_ in pairs if ours_.token_ids != theirs_.token_ids]
    return Outputs(num_compared=len(pairs), different=tuple(different))


def _paired(
    ours: Sequence[ArmResult], theirs: Sequence[ArmResult], *, drafted_only: bool = False
) -> tuple[Columns, Columns]:
    """Return the requests that both arms answered, in equal order."""
    others = {(one.seed, r.index): r for one in theirs for r in one.requests if not r.error}
    pairs = [
        (request, others[one.seed, request.index])
        for one in ours
        for request in one.requests
        if not request.error and (one.seed, request.index) in others
        if not drafted_only or request.max_draft_version != NO_DRAFTER
    ]
    return columns([one for one, _ in pairs]), columns([other for _, other in pairs])


def _length_difference(one: Columns, other: Columns) -> Interval | None:
    if not one.steps.sum() or not other.steps.sum():
        return None
    occurs = resample(len(one.place), num_resamples=_NUM_RESAMPLES, seed=0)
    resampled = (occurs @ one.accepted) / np.maximum(occurs @ one.steps, 1) - (
        occurs @ other.accepted
    ) / np.maximum(occurs @ other.steps, 1)
    estimate = one.accepted.sum() / one.steps.sum() - other.accepted.sum() / other.steps.sum()
    return bounds(float(estimate), resampled)


def _mean_duration(results: Sequence[ArmResult], window: Difference) -> float:
    """Return the mean seconds that the requests of a window took, first to last."""
    durations = []
    for result in results:
        before = [one.ended_s for one in result.requests if one.index < window.first]
        upto = [one.ended_s for one in result.requests if one.index < window.end]
        if upto:
            durations.append(max(max(upto) - max(before, default=0.0), 0.0))
    return float(np.mean(durations)) if durations else 0.0
