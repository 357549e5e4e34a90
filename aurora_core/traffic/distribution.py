"""Figures of merit: how a list of measurements is summed up, the same way everywhere."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from aurora_core.traffic.completion import SpeculationStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean and percentiles of some measurements; all None when there were none."""

    count: int
    mean: float | None
    p05: float | None
    p50: float | None
    p95: float | None


def describe(values: Iterable[float | None]) -> Distribution:
    """Sum up measurements; None stands for one that could not be made and is left out.

    Percentiles interpolate linearly between the sorted values, as numpy does.
    """
    known = [value for value in values if value is not None]
    if not known:
        return Distribution(count=0, mean=None, p05=None, p50=None, p95=None)
    cuts = statistics.quantiles(known, n=20, method="inclusive") if len(known) > 1 else known * 19
    return Distribution(
        count=len(known),
        mean=statistics.fmean(known),
        p05=cuts[0],
        p50=statistics.median(known),
        p95=cuts[18],
    )


def acceptance_length(stats: Iterable[SpeculationStats | None]) -> float | None:
    """Return 1 + accepted draft tokens / verification steps over all requests; None without steps.

    Requests weigh by their steps, so that this is the mean over steps and not over requests.
    """
    known = [one for one in stats if one is not None]
    num_steps = sum(one.num_steps for one in known)
    if not num_steps:
        return None
    return 1 + sum(sum(one.accepted_per_position) for one in known) / num_steps
