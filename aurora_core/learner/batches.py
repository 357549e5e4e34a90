"""Batches of those traces that can be learned from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aurora_core.errors import TraceError

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_core.interfaces import Speculator
    from aurora_core.records import Trace

log = logging.getLogger(__name__)


def collate_usable(
    speculator: Speculator, traces: Sequence[Trace]
) -> tuple[dict[str, Tensor] | None, list[Trace], list[Trace]]:
    """Return (batch, usable traces, bad traces); the batch is None if no trace is usable.

    Bad are those that `collate` refuses with a TraceError.
    """
    if not traces:
        return None, [], []
    usable: list[Trace] = []
    bad: list[Trace] = []
    try:
        return speculator.collate(traces), list(traces), bad
    except TraceError:
        # One bad trace spoils the batch and is not named: look for it.
        for trace in traces:
            try:
                speculator.collate([trace])
            except TraceError as error:
                log.warning("trace %s is skipped: %s", trace.trace_id, error)
                bad.append(trace)
            else:
                usable.append(trace)
    return (speculator.collate(usable) if usable else None), usable, bad
