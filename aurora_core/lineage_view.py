"""An engine that holds several lineages, as one of them sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from aurora_core.errors import BackendError
from aurora_core.interfaces import Backend, Options, ServePlan

if TYPE_CHECKING:
    from aurora_core.records import (
        BackendStatus,
        DraftVersion,
        Provides,
        RequestStats,
        Route,
        SwapReceipt,
    )


class HoldsLineages(Protocol):
    """What a backend has to offer for `LineageView`: its own methods, with a lineage to name."""

    @property
    def options(self) -> Options: ...
    @property
    def provides(self) -> Provides: ...
    @property
    def url(self) -> str: ...
    async def swap(self, version: DraftVersion | None, *, lineage: str = ...) -> SwapReceipt: ...
    async def route(self, routes: Sequence[Route], *, lineage: str = ...) -> None: ...
    async def status(self, *, lineage: str = ...) -> BackendStatus: ...
    async def finished(self, after: int) -> list[RequestStats]: ...


class LineageView(Backend):
    """Swaps, routes and reports for one lineage; starting and stopping is the engine's own."""

    def __init__(self, engine: HoldsLineages, name: str) -> None:
        """
        Args:
            engine: holds the lineage.
            name: of the lineage.
        """
        super().__init__(engine.options)
        self._engine, self._name = engine, name

    @property
    def provides(self) -> Provides:
        """Return what the engine can do."""
        return self._engine.provides

    @property
    def url(self) -> str:
        """Return the engine's address."""
        return self._engine.url

    async def start(self, plan: ServePlan) -> None:
        """Refuse: the engine starts with all its lineages at once."""
        raise BackendError(f"lineage {self._name!r} starts with its engine")

    async def swap(self, version: DraftVersion | None) -> SwapReceipt:
        """Make a version live for the requests of this lineage."""
        return await self._engine.swap(version, lineage=self._name)

    async def route(self, routes: Sequence[Route]) -> None:
        """Give shares of this lineage's requests to other drafters of it, or to none."""
        await self._engine.route(routes, lineage=self._name)

    async def status(self) -> BackendStatus:
        """Return this lineage's live version and traces, and the load of the whole engine."""
        return await self._engine.status(lineage=self._name)

    async def finished(self, after: int) -> list[RequestStats]:
        """Return finished requests of all lineages."""
        return await self._engine.finished(after)

    async def stop(self) -> None:
        """Do nothing: the engine serves the others."""
