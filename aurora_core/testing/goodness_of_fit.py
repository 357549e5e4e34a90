"""Whether a sample could come from a distribution that is known exactly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Outcome = TypeVar("Outcome", bound=Hashable)

LEAST_EXPECTED = 5.0
"""Outcomes that are expected less often are counted together."""


def misfit(sample: Iterable[Outcome], expected: Mapping[Outcome, float]) -> float:
    """Return how many standard deviations a sample is away from what is expected of it.

    Chi-square by the Wilson-Hilferty approximation to a normal deviate. Infinite if something
    happened that cannot happen.

    Args:
        sample: what was observed.
        expected: shares, or expected counts: they are scaled to the size of the sample.
    """
    observed = Counter(sample)
    scale = observed.total() / sum(expected.values())
    cells: list[tuple[float, float]] = []
    rare, rarely_expected = 0.0, 0.0
    for outcome, share in expected.items():
        count, wanted = observed.pop(outcome, 0), share * scale
        if wanted >= LEAST_EXPECTED:
            cells.append((count, wanted))
        else:
            rare, rarely_expected = rare + count, rarely_expected + wanted
    rare += observed.total()
    if rarely_expected > 0:
        cells.append((rare, rarely_expected))
    elif rare:
        return math.inf
    freedom = len(cells) - 1
    if freedom < 1:
        return 0.0
    chi_square = sum((count - wanted) ** 2 / wanted for count, wanted in cells)
    spread = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))
