"""Traces kept and shed during a run, as far as the sink's own counts tell."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aurora_core.interfaces import TraceSink

log = logging.getLogger(__name__)


class TraceCounts:
    """A sink counts over all its writers and readers, and over runs; this counts from now on."""

    def __init__(self, sink: TraceSink) -> None:
        """
        Args:
            sink: prepared, and not used by this run yet.
        """
        self._sink = sink
        self._before = self._read()

    def since_start(self, *, kept: int, shed: int) -> tuple[int, int]:
        """Return traces kept and shed by both ends since the run began.

        Args:
            kept: what the engine reported.
            shed: likewise. Both are the least that is returned: a sink may know nothing, and one
                whose writer was killed may lack its last second.
        """
        kept_before, shed_before = self._before
        kept_now, shed_now = self._read()
        return max(kept, kept_now - kept_before), max(shed, shed_now - shed_before)

    def _read(self) -> tuple[int, int]:
        try:
            stats = self._sink.stats()
        except Exception as error:  # a plugin's sink; its counts are not worth a run
            log.warning("the trace sink does not tell its counts: %r", error)
            return 0, 0
        return stats.kept, sum(stats.shed.values())
