"""How sure a comparison is. Pure functions over counts and samples; equal input, equal output.

Two kinds of interval, for two kinds of looking:

    bootstrap     a fixed set of held-out traces, looked at once: traces are resampled, with a seed
    sequential    live requests, looked at again and again while they come in: the interval holds
                  at all looks together, so that stopping at the first good one is honest
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from aurora_core.serving_figures import Sample, TrafficSlice

_TIGHTEST_AT = 20.0
"""Effective number of requests at which the sequential interval is narrowest."""
_LEAST_SPREAD = 0.02
"""Standard deviation of one request, relative to the mean, that is taken for granted: equal values
in a handful of requests are no proof that there is no spread."""


class Interval(NamedTuple):
    """An estimate with its bounds."""

    estimate: float
    lower: float
    upper: float


def bootstrap_acceptance(
    num_anchors: Sequence[int],
    accepted: Sequence[Sequence[int]],
    *,
    confidence: float = 0.9,
    num_resamples: int = 2000,
    seed: int = 0,
) -> tuple[Interval, ...]:
    """Return the acceptance at each draft position of a held-out replay, bootstrapped over traces.

    Args:
        num_anchors: [traces] positions that drafting was replayed from.
        accepted: [traces][K] anchors whose first k drafts were all right.
        confidence: of each two-sided interval, by the percentile method.
        num_resamples: resamples of the traces, with replacement.
        seed: equal seeds give equal bounds.

    Returns:
        [K] shares in 0..1; nothing without any anchor.
    """
    anchors = np.asarray(num_anchors, dtype=np.int64)
    if not anchors.sum():
        return ()
    scored = anchors > 0
    counts, anchors = np.asarray(accepted, dtype=np.int64)[scored], anchors[scored]
    occurs = resample(len(anchors), num_resamples=num_resamples, seed=seed)
    rates = (occurs @ counts) / (occurs @ anchors)[:, None]
    tail = (1 - confidence) / 2
    lower, upper = np.quantile(rates, (tail, 1 - tail), axis=0)
    means = counts.sum(0) / anchors.sum()
    return tuple(Interval(*map(float, row)) for row in zip(means, lower, upper, strict=True))


def resample(num_items: int, *, num_resamples: int, seed: int) -> np.ndarray:
    """Return how often each item occurs in each resample, int64 [resamples, items]."""
    # Drawing n items with replacement is drawing how often each one occurs.
    return np.random.default_rng(seed).multinomial(
        num_items, np.full(num_items, 1 / num_items), size=num_resamples
    )


def sample_of(values: Sequence[float]) -> Sample:
    """Return the mean and the unbiased variance of some values."""
    if not len(values):  # an array has no truth value
        return Sample()
    array = np.asarray(values, dtype=np.float64)
    variance = float(array.var(ddof=1)) if len(values) > 1 else 0.0
    return Sample(count=len(values), mean=float(array.mean()), variance=variance)


def sequential_ratio(
    pairs: Sequence[tuple[Sample, Sample]], *, confidence: float
) -> Interval | None:
    """Return the ratio of two means with bounds that hold at every look at growing data.

    The interval is the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and
    Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences" (2021), theorem
    2.2, on the logarithm of the ratio. Like any result of the central limit theorem it is
    approximate for few requests; a spread is taken for granted, so that a handful of equal values
    is not certainty.

    Args:
        pairs: (above, below the line) per stratum, for example per batch-size bucket. Within a
            stratum the two are compared; strata are combined by the inverse of their variance.
        confidence: two-sided, over all looks together.

    Returns:
        None if no stratum has at least one request on both sides.
    """
    usable = [
        (above, below) for above, below in pairs if min(above.count, below.count) and below.mean > 0
    ]
    if not usable:
        return None
    spreads = [_relative_variance([pair[side] for pair in usable]) for side in (0, 1)]
    weight_sum = weighted = effective = 0.0
    for above, below in usable:
        variance = spreads[0] / above.count + spreads[1] / below.count
        weight_sum += 1 / variance
        weighted += math.log(max(above.mean, 1e-12) / below.mean) / variance
        effective += above.count * below.count / (above.count + below.count)
    logarithm, error = weighted / weight_sum, math.sqrt(1 / weight_sum)
    radius = error * sequential_width(effective, confidence=confidence)
    return Interval(math.exp(logarithm), math.exp(logarithm - radius), math.exp(logarithm + radius))


def sequential_width(effective: float, *, confidence: float) -> float:
    """Return the half width of a sequential interval, in standard errors.

    Args:
        effective: effective number of observations behind the standard error.
        confidence: two-sided.
    """
    miss = 1 - confidence
    tight = -2 * math.log(miss)
    rho_squared = (tight + math.log(tight) + 1) / _TIGHTEST_AT
    grown = effective * rho_squared
    return math.sqrt(2 * (grown + 1) / grown * math.log(math.sqrt(grown + 1) / miss))


def match_strata(
    above: Sequence[TrafficSlice], below: Sequence[TrafficSlice], figure: str
) -> list[tuple[Sample, Sample]]:
    """Return one figure of two versions for every slice of the traffic that both have served.

    Args:
        above: slices of one version.
        below: slices of the other, cut in the same way.
        figure: `length` or `otps`.
    """
    others = {_key(one): one for one in below}
    return [
        (getattr(one, figure), getattr(others[_key(one)], figure))
        for one in above
        if _key(one) in others
    ]


def _key(one: TrafficSlice) -> tuple[int, str, str]:
    return one.batch_size, one.tenant, one.route


def _relative_variance(samples: Sequence[Sample]) -> float:
    """Return the variance of one request relative to the mean squared, pooled over strata.

    A stratum of two alike requests would otherwise outweigh all others.
    """
    freedom = sum(one.count - 1 for one in samples)
    pooled = sum((s.count - 1) * s.variance / s.mean**2 for s in samples if s.mean > 0)
    return max(pooled / freedom if freedom else 0.0, _LEAST_SPREAD**2)
