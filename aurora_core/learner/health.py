"""The share of what could not be learned from lately."""

from __future__ import annotations

from collections import deque


class BadShare:
    """Counts good and bad over a sliding window.

    Args:
        limit: share of bad ones above which `exceeded` holds.
        window: outcomes that are remembered.
        min_outcomes: fewer than this many decide nothing.
    """

    def __init__(self, limit: float, *, window: int = 100, min_outcomes: int = 20) -> None:
        self.limit, self.min_outcomes = limit, min_outcomes
        self._outcomes: deque[bool] = deque(maxlen=window)

    def record(self, *, is_bad: bool) -> None:
        """Take in one outcome: a trace that was refused, or a batch."""
        self._outcomes.append(is_bad)

    @property
    def share(self) -> float:
        """Bad outcomes in the window, 0 to 1."""
        return sum(self._outcomes) / max(1, len(self._outcomes))

    @property
    def exceeded(self) -> bool:
        """Whether enough outcomes are known and too many of them are bad."""
        return len(self._outcomes) >= self.min_outcomes and self.share > self.limit

    def forget(self) -> None:
        """Start over."""
        self._outcomes.clear()
