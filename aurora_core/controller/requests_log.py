"""Finished requests, asked for about once a second: recorded, counted and announced."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from aurora_core.controller.record_file import RecordFile
from aurora_core.errors import BackendError
from aurora_core.interfaces import Backend
from aurora_core.records import BackendStatus, RequestStats
from aurora_core.wire import to_dict

log = logging.getLogger(__name__)


@dataclass
class EngineRecord:
    """What the engine was seen to do, for the console and the report."""

    num_finished: int = 0
    """Requests of every kind: traffic, comparisons, measurements."""
    num_aborted: int = 0
    """Requests that ended because their client went away."""
    peak_memory_mib: float = 0.0
    """Resident memory, sampled once a second."""
    traces_kept: int = 0
    traces_shed: int = 0


class RequestsLog:
    """Reads the engine's finished requests and its status, and notices when it is gone."""

    def __init__(
        self,
        backend: Backend,
        file: RecordFile,
        *,
        on_requests: Callable[[list[RequestStats]], None],
        on_status: Callable[[BackendStatus], Awaitable[None]],
        poll_s: float = 1.0,
        patience: int = 3,
    ) -> None:
        """
        Args:
            backend: the running engine.
            file: is given one record per request.
            on_requests: called on the event loop with every batch of finished requests.
            on_status: awaited with every status, after the requests that came before it.
            poll_s: seconds between two questions.
            patience: unanswered questions in a row after which the engine counts as dead; a
                busy machine may miss one.
        """
        self.record = EngineRecord()
        self._backend, self._file = backend, file
        self._on_requests, self._on_status = on_requests, on_status
        self._poll_s, self._patience = poll_s, patience
        self._last_sequence = 0
        self._num_unanswered = 0
        self._polling = anyio.Lock()

    async def run(self) -> None:
        """Poll until cancelled.

        Raises:
            BackendError: the engine does not answer any more.
        """
        while True:
            try:
                await self.poll()
                self._num_unanswered = 0
            except BackendError as error:
                self._num_unanswered += 1
                log.warning("the engine did not answer (%d): %s", self._num_unanswered, error)
                if self._num_unanswered >= self._patience:
                    raise
            await anyio.sleep(self._poll_s)

    async def poll(self) -> None:
        """Take in what finished since the last call; also called once when serving ends."""
        async with self._polling:  # the sequence read must not be asked for twice
            requests = await self._backend.finished(self._last_sequence)
            status = await self._backend.status()
            record = self.record
            record.peak_memory_mib = max(record.peak_memory_mib, status.memory_mib)
            record.traces_kept = max(record.traces_kept, status.traces_kept)
            record.traces_shed = max(record.traces_shed, status.traces_shed)
            if requests:
                self._last_sequence = requests[-1].sequence
                record.num_finished += len(requests)
                record.num_aborted += sum(one.finish_reason == "abort" for one in requests)
                self._file.append(*(to_dict(request) for request in requests))
                self._on_requests(requests)
            await self._on_status(status)
