"""The engine's end of a spool.

    engine thread --put()--> bounded queue --writer thread--> encode, make room, write, rename

`put` takes a lock that the writer thread holds only to take one entry out, so it costs
microseconds whatever the disk does. Nothing that goes wrong on the disk reaches the engine: the
trace is shed and counted.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from aurora_core.errors import TraceError
from aurora_core.interfaces import TraceWriter
from aurora_core.records import SinkStats
from aurora_core.spool.directory import Counts, SpoolDirectory, trace_digest
from aurora_core.trace_file import encode_trace

if TYPE_CHECKING:
    from aurora_core.records import Trace
    from aurora_core.spool.directory import Entry
    from aurora_core.spool.options import SpoolOptions

logger = logging.getLogger(__name__)

SAVE_COUNTS_EVERY_S = 1.0
LOOK_EVERY_S = 2.0
"""Seconds after which the writer looks again at what other writers and the reader did."""
TRIM_EVERY_S = 30.0
"""Seconds between enforcements of the age limit while nothing is written."""
WARN_EVERY_S = 60.0
CLOSE_TIMEOUT_S = 30.0
_NUM_REMEMBERED_IDS = 65_536


class SpoolWriter(TraceWriter):
    """Hands finished requests to a writer thread. `put` may be called from any thread.

    Reasons in `stats().shed`: `queue` full, `duplicate` id, `sampling`, `too_large` for the
    budget, `full`, `disk` failure, `closed`, `error` in encoding; `evicted` and `expired` count
    older traces that were removed.
    """

    def __init__(self, options: SpoolOptions) -> None:
        self._options = options
        self._directory = SpoolDirectory(options.path)
        self._directory.prepare()
        self._queue: deque[tuple[str, Trace, int]] = deque()
        self._queued_bytes = 0
        self._closed = False
        self._counts = Counts()
        self._changed = threading.Condition()
        self._remembered: OrderedDict[str, None] = OrderedDict()
        self._held_traces = self._held_bytes = 0
        self._next_look = self._next_save = self._next_warning = 0.0
        self._saved: tuple[int, int] | None = None
        for entry in self._trim(reserve=0):
            self._remember(entry.digest)
        self._thread = threading.Thread(target=self._run, name="aurora-spool", daemon=True)
        self._thread.start()

    def put(self, trace: Trace) -> bool:
        """Queue a trace for the disk. Its tensors must not change afterwards."""
        digest = trace_digest(trace.trace_id)
        num_bytes = _tensor_bytes(trace)
        with self._changed:
            reason = self._refusal(digest, num_bytes)
            if reason is not None:
                self._counts.shed[reason] += 1
                return False
            self._remember(digest)
            self._queue.append((digest, trace, num_bytes))
            self._queued_bytes += num_bytes
            self._changed.notify()
        return True

    def stats(self) -> SinkStats:
        """Return this writer's counts, and the size of the spool when it last looked."""
        with self._changed:
            return SinkStats(
                num_traces=self._held_traces,
                num_bytes=self._held_bytes,
                kept=self._counts.kept,
                shed=dict(self._counts.shed),
            )

    def close(self) -> None:
        """Write what is queued and stop the thread; gives up on a disk that hangs."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.warning("the disk of %s hangs; queued traces are lost", self._directory.path)

    def _refusal(self, digest: str, num_bytes: int) -> str | None:
        if self._closed:
            return "closed"
        # By trace id, so that a repeated put meets the same decision.
        if int(digest, 16) >= self._options.sampling_rate * 2**64:
            return "sampling"
        if digest in self._remembered:
            return "duplicate"
        if num_bytes > self._options.max_bytes:
            return "too_large"
        full = len(self._queue) >= self._options.queue_traces
        # A trace larger than the queue still passes, alone.
        if full or (self._queue and self._queued_bytes + num_bytes > self._options.queue_bytes):
            return "queue"
        return None

    def _remember(self, digest: str) -> None:
        self._remembered[digest] = None
        if len(self._remembered) > _NUM_REMEMBERED_IDS:
            self._remembered.popitem(last=False)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue and not self._closed:
                    self._changed.wait(timeout=SAVE_COUNTS_EVERY_S)
                ended = self._closed and not self._queue
                item = self._queue.popleft() if self._queue else None
                if item is not None:
                    self._queued_bytes -= item[2]
            if item is not None:
                self._write(item[0], item[1])
            self._keep_house(ended)
            if ended:
                return

    def _write(self, digest: str, trace: Trace) -> None:
        reason = "error"
        try:
            data = encode_trace(trace)
            reason = "disk"
            refusal = self._make_room(len(data))
            if refusal is None:
                self._directory.add(data, digest)
        except OSError as error:
            refusal = reason
            self._warn("a trace cannot be written to %s: %s", self._directory.path, error)
        except Exception as error:  # one odd trace must not end the recording
            refusal = reason
            self._warn("trace %r cannot be recorded: %s", trace.trace_id, error)
        with self._changed:
            if refusal is None:
                self._counts.kept += 1
                self._held_traces += 1
                self._held_bytes += len(data)
            else:
                self._counts.shed[refusal] += 1
                self._remembered.pop(digest, None)  # it may be handed over again

    def _make_room(self, num_bytes: int) -> str | None:
        """Return why there is no room for `num_bytes` more, or None when there is."""
        budget = self._options.max_bytes
        if num_bytes > budget:
            return "too_large"
        if self._held_bytes + num_bytes > budget or time.monotonic() >= self._next_look:
            self._trim(reserve=num_bytes)
        return "full" if self._held_bytes + num_bytes > budget else None

    def _trim(self, reserve: int) -> list[Entry]:
        """Enforce the limits and look at what all processes together hold."""
        counts = Counts()
        left = self._directory.trim(
            max_bytes=self._options.max_bytes,
            max_age_s=self._options.max_age_s,
            shed=counts.shed,
            reserve=reserve,
        )
        num_bytes = self._directory.num_bytes()
        with self._changed:
            self._counts.shed.update(counts.shed)
            self._held_traces, self._held_bytes = len(left), num_bytes
        self._next_look = time.monotonic() + LOOK_EVERY_S
        return left

    def _keep_house(self, ended: bool) -> None:
        now = time.monotonic()
        if now >= self._next_look + TRIM_EVERY_S:
            with contextlib.suppress(TraceError):
                self._trim(reserve=0)
        with self._changed:
            counts = Counts(self._counts.kept, self._counts.shed.copy())
        summary = (counts.kept, counts.shed.total())
        if summary != self._saved and (ended or now >= self._next_save):
            self._next_save = now + SAVE_COUNTS_EVERY_S
            try:
                self._directory.write_counts("writer", counts)
                self._saved = summary
            except OSError as error:
                self._warn("counts cannot be saved in %s: %s", self._directory.path, error)

    def _warn(self, message: str, *arguments: object) -> None:
        now = time.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + WARN_EVERY_S
            logger.warning(message, *arguments)


def _tensor_bytes(trace: Trace) -> int:
    """Return about how much memory a queued trace holds; features are nearly all of it."""
    return trace.token_ids.nbytes + sum(feature.nbytes for feature in trace.features.values())
