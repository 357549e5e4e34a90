"""Decoded traces that were used last."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aurora_core.records import Trace


class TraceCache:
    """Traces by name, within a byte budget; the one used longest ago goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        """Bytes held now."""
        self._traces: OrderedDict[str, tuple[Trace, int]] = OrderedDict()

    def get(self, name: str) -> Trace | None:
        """Return a trace if it is here, and count it as used."""
        found = self._traces.get(name)
        if found is None:
            return None
        self._traces.move_to_end(name)
        return found[0]

    def add(self, name: str, trace: Trace) -> None:
        """Keep a trace that is not here yet; one larger than the budget is not kept."""
        num_bytes = trace.token_ids.nbytes + sum(f.nbytes for f in trace.features.values())
        if num_bytes > self._max_bytes:
            return
        self._traces[name] = (trace, num_bytes)
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            _, (_, freed) = self._traces.popitem(last=False)
            self.num_bytes -= freed

    def remove(self, name: str) -> None:
        """Drop a trace, if it is here."""
        if name in self._traces:
            self.num_bytes -= self._traces.pop(name)[1]
