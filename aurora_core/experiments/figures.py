"""Figures of one arm, from requests in the order of the stream. Pure; equal input, equal output.

Requests of several seeds are put side by side: a window holds the requests at the same places of
every seed, and an interval resamples them all. It covers the chance of the prompts; what differs
between repetitions with equal prompts is seen only by comparing seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from aurora_core.confidence import Interval, resample
from aurora_core.experiments.results import ArmResult, RequestFigures

CONFIDENCE = 0.95
_NUM_RESAMPLES = 2000
_TRAILING = 10
"""Requests over which the acceptance length is averaged when a recovery is looked for."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Requests as arrays, one entry each: answered ones alone."""

    place: np.ndarray
    """int64. Position in the stream."""
    accepted: np.ndarray
    """int64. Draft tokens accepted."""
    steps: np.ndarray
    """int64. Verification steps."""
    otps: np.ndarray
    """float64. NaN where there is none."""

    def at(self, chosen: np.ndarray) -> Columns:
        """Return some of the requests."""
        parts = (self.place, self.accepted, self.steps, self.otps)
        return Columns(*(part[chosen] for part in parts))

    def within(self, first: int, end: int) -> Columns:
        """Return the requests at places first .. end - 1."""
        return self.at((self.place >= first) & (self.place < end))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Consecutive requests of a stream."""

    first: int
    end: int
    """The first place after it."""
    length: Interval | None
    """Acceptance length; None without a step."""
    otps: Interval | None
    """Mean output tokens per second of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How an arm came back after one shift."""

    domain: str
    seed: int
    plateau: float
    """Acceptance length over the second half of the domain."""
    num_requests: int | None
    """Until the mean of the latest 10 requests first reached 90 % of it; None if it never did."""
    seconds: float | None


def columns(requests: Sequence[RequestFigures]) -> Columns:
    """Return requests as arrays; failed ones are left out."""
    good = [one for one in requests if not one.error]
    return Columns(
        np.array([one.index for one in good], dtype=np.int64),
        np.array([one.num_accepted for one in good], dtype=np.int64),
        np.array([one.num_steps for one in good], dtype=np.int64),
        np.array([np.nan if one.otps is None else one.otps for one in good], dtype=np.float64),
    )


def pooled(results: Sequence[ArmResult]) -> Columns:
    """Return the requests of several seeds as one."""
    return columns([one for result in results for one in result.requests])


def summarise(requests: Columns, *, first: int = 0, end: int | None = None) -> Window:
    """Return one window over some places, all of them by default."""
    last = int(requests.place.max(initial=-1)) + 1 if end is None else end
    chosen = requests.within(first, last)
    return Window(first=first, end=last, length=_length(chosen), otps=_otps(chosen))


def curve(requests: Columns, size: int) -> list[Window]:
    """Return the windows of so many places, one after the other; the last may be shorter."""
    end = int(requests.place.max(initial=-1)) + 1
    return [
        summarise(requests, first=first, end=min(first + size, end))
        for first in range(0, end, size)
    ]


def recoveries(result: ArmResult) -> list[Recovery]:
    """Return how an arm came back after each change of domain of an ordered stream."""
    found = []
    for first, end in blocks(result.requests)[1:]:
        block = columns(result.requests).within(first, end)
        half = block.within(first + (end - first) // 2, end)
        if not half.steps.sum():
            continue
        plateau = 1 + half.accepted.sum() / half.steps.sum()
        # Never fewer of the latest requests: the first few alone say too little.
        latest = np.ones(min(_TRAILING, len(block.place)))
        accepted, steps = (
            np.convolve(part, latest, "valid") for part in (block.accepted, block.steps)
        )
        reached = np.flatnonzero(1 + accepted / np.maximum(steps, 1) >= 0.9 * plateau)
        num_requests = None
        if len(reached):
            num_requests = int(block.place[reached[0] + len(latest) - 1]) - first + 1
        found.append(
            Recovery(
                domain=result.requests[first].domain,
                seed=result.seed,
                plateau=float(plateau),
                num_requests=num_requests,
                seconds=_seconds(result, first, num_requests),
            )
        )
    return found


def blocks(requests: Sequence[RequestFigures]) -> list[tuple[int, int]]:
    """Return (first, end) of each run of requests of one domain."""
    starts = [
        place
        for place, one in enumerate(requests)
        if place == 0 or one.domain != requests[place - 1].domain
    ]
    return list(pairwise([*starts, len(requests)]))


def _seconds(result: ArmResult, first: int, num_requests: int | None) -> float | None:
    if num_requests is None:
        return None
    before = max((one.ended_s for one in result.requests[:first]), default=0.0)
    reached = max(one.ended_s for one in result.requests[first : first + num_requests])
    return max(reached - before, 0.0)


def _length(chosen: Columns) -> Interval | None:
    if not chosen.steps.sum():
        return None
    occurs = resample(len(chosen.place), num_resamples=_NUM_RESAMPLES, seed=0)
    steps = occurs @ chosen.steps
    lengths = 1 + (occurs @ chosen.accepted)[steps > 0] / steps[steps > 0]
    return bounds(1 + float(chosen.accepted.sum() / chosen.steps.sum()), lengths)


def _otps(chosen: Columns) -> Interval | None:
    known = chosen.otps[~np.isnan(chosen.otps)]
    if not len(known):
        return None
    occurs = resample(len(known), num_resamples=_NUM_RESAMPLES, seed=0)
    return bounds(float(known.mean()), occurs @ known / len(known))


def bounds(estimate: float, resampled: np.ndarray) -> Interval:
    """Return an estimate with the two-sided percentile bounds of its resamples."""
    tail = (1 - CONFIDENCE) / 2
    lower, upper = np.quantile(resampled, (tail, 1 - tail))
    return Interval(estimate, float(lower), float(upper))
