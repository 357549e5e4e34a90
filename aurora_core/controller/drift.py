"""A fall of the acceptance length, noticed as it happens."""

from __future__ import annotations

import math

_WARM_UP = 20
"""Values that say what is normal before anything counts as a fall."""
_LEAST_SPREAD = 0.02
"""Spread relative to the mean that is taken for granted."""


class PageHinkley:
    """The test of Page for a fall of the mean, with Hinkley's running estimate of the level.

    E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954); D. V. Hinkley, "Inference
    about the change-point from cumulative sum tests", Biometrika 58 (1971). Values are taken in
    units of their own spread, so that one threshold fits every traffic.

    Own code, because the score itself is evidence: libraries tell only that it crossed a threshold.
    """

    def __init__(self, *, tolerance: float = 0.25, warm_up: int = _WARM_UP) -> None:
        """
        Args:
            tolerance: fall of the mean that is no drift, in standard deviations.
            warm_up: values that only say what is normal.
        """
        self.num_values = 0
        self._tolerance, self._warm_up = tolerance, warm_up
        self._mean = self._squares = 0.0
        self._sum = self._least = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether the warm-up is over."""
        return self.num_values >= self._warm_up

    @property
    def score(self) -> float:
        """How far the cumulated fall exceeds its lowest value, in standard deviations; 0: none."""
        return self._sum - self._least

    def observe(self, value: float) -> None:
        """Take in the next value."""
        self.num_values += 1
        difference = value - self._mean
        self._mean += difference / self.num_values
        self._squares += difference * (value - self._mean)
        # Of all values so far: that of the warm-up alone may be far too small by chance.
        spread = math.sqrt(self._squares / max(self.num_values - 1, 1))
        deviation = max(spread, _LEAST_SPREAD * abs(self._mean), 1e-9)
        if self.num_values <= self._warm_up:
            return
        self._sum += (self._mean - value) / deviation - self._tolerance
        self._least = min(self._least, self._sum)
