"""How often each head's best tokens are right, measured over recent requests."""

from __future__ import annotations

from collections.abc import Sequence

from aurora_medusa.candidate_tree import default_accuracy
from aurora_medusa.config import NUM_RANKS

FORGETTING = 0.98
"""What an observation is worth after one more request: half of it is gone after 34."""

PRIOR_ROWS = 16.0
"""Observations that the default accuracies are worth at the start; they are forgotten too."""


class RankAccuracy:
    """Counts with exponential forgetting, one per head and rank: its memory never grows."""

    def __init__(self, num_heads: int) -> None:
        """Start from the default accuracies."""
        self._seen = [PRIOR_ROWS] * num_heads
        self._hits = [
            [PRIOR_ROWS * chance for chance in ranks] for ranks in default_accuracy(num_heads)
        ]

    @property
    def num_heads(self) -> int:
        """Heads counted."""
        return len(self._seen)

    def add(self, hits: Sequence[Sequence[int]], seen: Sequence[int]) -> None:
        """Count one request.

        Args:
            hits: [head][rank], up to `NUM_RANKS` ranks. Rows whose token of that rank was the
                committed one.
            seen: [head] Rows judged. A head without any keeps what it has.
        """
        for head, num_rows in enumerate(seen):
            if not num_rows:
                continue
            self._seen[head] = FORGETTING * self._seen[head] + num_rows
            for rank in range(NUM_RANKS):
                new = hits[head][rank] if rank < len(hits[head]) else 0
                self._hits[head][rank] = FORGETTING * self._hits[head][rank] + new

    def estimate(self) -> list[list[float]]:
        """Return the share of rows, [head][rank], in which this rank's token was right."""
        return [
            [hits / seen for hits in ranks]
            for ranks, seen in zip(self._hits, self._seen, strict=True)
        ]

    def copy(self) -> RankAccuracy:
        """Return equal counts that go their own way."""
        copied = RankAccuracy(self.num_heads)
        copied._seen = list(self._seen)
        copied._hits = [list(ranks) for ranks in self._hits]
        return copied
