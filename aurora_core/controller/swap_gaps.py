"""What a swap costs those who watch: the pauses in streamed answers, with and without a swap.

    swap asked for ---- loading, switching ---- engine confirms
         |<------------ a window ------------------->|
    request sent ------------------------------- last token      overlaps: "at a swap"

A request's longest pause need not lie inside the window, so the figure of requests at a swap is an
upper bound of what swaps cost; that of all the others is there to compare it with.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

_KEPT_GAPS = 10_000
_KEPT_WINDOWS = 100


class SwapGaps:
    """Longest pauses of the run's own streamed answers, in milliseconds. Bounded memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: seconds.
        """
        self.at_swaps: deque[float] = deque(maxlen=_KEPT_GAPS)
        """Of requests that were in flight while a version was loaded and went live."""
        self.elsewhere: deque[float] = deque(maxlen=_KEPT_GAPS)
        """Of all the others."""
        self._clock = clock
        self._windows: deque[tuple[float, float]] = deque(maxlen=_KEPT_WINDOWS)
        self._num_open = 0

    @contextlib.contextmanager
    def window(self) -> Iterator[None]:
        """Mark the time of one swap, from asking the engine to its answer."""
        began = self._clock()
        self._num_open += 1  # lineages may swap at the same time
        try:
            yield
        finally:
            self._num_open -= 1
            self._windows.append((began, self._clock()))

    def answered(self, *, longest_gap_s: float | None, latency_s: float | None) -> None:
        """Take in an answer that was complete just now.

        Args:
            longest_gap_s: longest pause between two chunks with tokens; None for too few of them.
            latency_s: from sending it to its end; None leaves it out.
        """
        if longest_gap_s is None or latency_s is None:
            return
        sent = self._clock() - latency_s
        at_swap = self._num_open > 0 or any(end >= sent for _, end in self._windows)
        (self.at_swaps if at_swap else self.elsewhere).append(1000 * longest_gap_s)
