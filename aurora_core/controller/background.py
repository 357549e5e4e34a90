"""A task that can be ended, and waited for, by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup


class Background:
    """Runs a function in a task group until `end`; a task group alone can only end as a whole."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._ended = anyio.Event()

    def start(self, tasks: TaskGroup, function: Callable[[], Awaitable[None]]) -> None:
        """Start the function; what it raises, the group raises."""
        self._scope = anyio.CancelScope()
        tasks.start_soon(self._run, self._scope, function)

    async def end(self) -> None:
        """Cancel it and return once it is over. Callable twice, and before `start`."""
        if self._scope is not None:
            self._scope.cancel()
            await self._ended.wait()

    async def _run(self, scope: anyio.CancelScope, function: Callable[[], Awaitable[None]]) -> None:
        try:
            with scope:
                await function()
        finally:
            self._ended.set()
