"""Keeps an engine running: starts it again after a crash, a little later every time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from aurora_core.engine_process.server import ServerProcess
from aurora_core.errors import BackendError

logger = logging.getLogger(__name__)


class EngineSupervisor:
    """Owns the engine's process. All methods belong to one asyncio event loop."""

    def __init__(
        self,
        launch: Callable[[], Awaitable[ServerProcess]],
        *,
        max_restarts: int = 3,
        first_delay_s: float = 1.0,
        longest_delay_s: float = 30.0,
        stable_s: float = 120.0,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        """
        Args:
            launch: starts the engine with the drafter that should be live now, and returns once it
                answers; raises BackendError, leaving nothing running.
            max_restarts: starts in a row that may follow a crash before it is given up.
            first_delay_s: seconds before the first of them; doubled for each that follows.
            longest_delay_s: seconds that this grows to at most.
            stable_s: seconds of serving after which a crash counts as the first one again.
            on_end: told in a sentence why the engine ended, before it is started again.
        """
        self.num_restarts = 0
        """Times that the engine was started again and answered."""
        self._launch, self._on_end = launch, on_end
        self._max_restarts, self._stable_s = max_restarts, stable_s
        self._first_delay_s, self._longest_delay_s = first_delay_s, longest_delay_s
        self._process: ServerProcess | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._failure: str | None = None

    async def start(self) -> None:
        """Start the engine and watch it from now on.

        Raises:
            BackendError: it does not come up; a first start is not repeated.
        """
        self._process = await self._launch()
        self._ready.set()
        self._watching = asyncio.create_task(self._watch())

    async def ready(self) -> ServerProcess:
        """Return the engine's process, once it answers if it is being started again.

        Raises:
            BackendError: it was given up, or never started.
        """
        if self._watching is None:
            raise BackendError(self._failure or "the engine is not running")
        await self._ready.wait()
        if self._failure is not None or self._process is None:
            raise BackendError(self._failure or "the engine is not running")
        return self._process

    async def noticed_end(self) -> bool:
        """Return whether the engine has just ended; then `ready` waits for the next one."""
        process = self._process
        if process is None or not await process.has_ended():
            return False
        if self._process is process and self._failure is None:
            self._ready.clear()
        return True

    async def stop(self) -> None:
        """End the engine and the watching. Callable twice, and after a failed start."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        process, self._process = self._process, None
        self._failure = self._failure or "the engine is not running"
        self._ready.set()
        if process is not None:
            await process.end()

    async def _watch(self) -> None:
        num_in_a_row = 0
        while self._process is not None:
            started = time.monotonic()
            await self._process.wait()
            self._ready.clear()
            reason = self._process.describe_end()
            await self._process.end()
            if time.monotonic() - started >= self._stable_s:
                num_in_a_row = 0
            logger.warning("%s", reason)
            if self._on_end is not None:
                self._on_end(reason)
            self._process = None
            while self._process is None:
                num_in_a_row += 1
                if num_in_a_row > self._max_restarts:
                    self._failure = reason
                    self._ready.set()
                    return
                delay_s = self._first_delay_s * 2.0 ** (num_in_a_row - 1)
                await asyncio.sleep(min(delay_s, self._longest_delay_s))
                try:
                    self._process = await self._launch()
                except BackendError as error:
                    reason = str(error)
                    logger.warning("the engine did not start again: %s", reason)
            self.num_restarts += 1
            self._ready.set()
