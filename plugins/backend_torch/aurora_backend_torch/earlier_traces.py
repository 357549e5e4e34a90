"""What an engine knows from before its start: the traces that its run has recorded so far.

A drafter that learns by watching holds its knowledge in memory alone. Shown the newest traces, it
goes on as if the engine had not been stopped.
"""

from __future__ import annotations

import logging
from collections import deque

from aurora_backend_torch.residents import Residents
from aurora_core.errors import AuroraError
from aurora_core.interfaces import TraceSink

logger = logging.getLogger(__name__)

NUM_OBSERVED = 1024
"""Traces shown at most, the newest ones: as many as are read in a second or two."""


def observe_earlier(residents: Residents, sink: TraceSink) -> int:
    """Show the newest traces of a sink to the resident drafters, oldest first; return how many.

    A sink that cannot be read costs the drafters their past, not the engine its start.
    """
    if not sink.stats().num_traces:
        return 0  # a reader would create what is not there yet
    try:
        newest = deque(sink.open_reader().iterate(), maxlen=NUM_OBSERVED)
    except (AuroraError, OSError) as error:
        logger.warning("earlier traces cannot be read, so no drafter knows of them: %s", error)
        return 0
    for trace in newest:
        residents.observe(trace)
    logger.info("%d earlier traces were shown to the drafters", len(newest))
    return len(newest)
