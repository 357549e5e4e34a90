"""A serving engine, as the controller sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from aurora_core.errors import BackendError
from aurora_core.interfaces.component import Component
from aurora_core.interfaces.serve_plan import ServePlan
from aurora_core.records import (
    BackendStatus,
    DraftVersion,
    Provides,
    RequestStats,
    Route,
    SwapReceipt,
)


class Backend(Component, ABC):
    """A serving engine seen from outside. Methods are called from one asyncio event loop."""

    @property
    @abstractmethod
    def provides(self) -> Provides:
        """Return what the engine can do. Read once, before anything is started."""

    @property
    def to_swap(self) -> str:
        """Return what a person has to do before a version can go live.

        For engines whose `hot_swap` is `restart`: the end of a sentence about a version that
        would go live. `swap` is not called there.
        """
        return ""

    @property
    @abstractmethod
    def url(self) -> str:
        """Return the base URL of the OpenAI-compatible API, without `/v1`."""

    def check(self) -> None:
        """See that this machine has what the options name; start nothing that serves. Blocks.

        For what options alone cannot tell, as devices, addresses and other environments. `aurora
        check` calls it, so `start` should refuse the same in the same words.

        Raises:
            BackendError: the first thing that would keep `start` from succeeding.
        """
        return

    @abstractmethod
    async def start(self, plan: ServePlan) -> None:
        """Launch the engine, or attach to a running one; return once it answers.

        Raises:
            BackendError: it does not come up; nothing is left running then.
        """

    @abstractmethod
    async def swap(self, version: DraftVersion | None) -> SwapReceipt:
        """Make a version live, or switch speculation off with None. All or nothing.

        Raises:
            BackendError: refused, or the checksum read back differs; the previous drafter serves.
        """

    async def route(self, routes: Sequence[Route]) -> None:
        """Give shares of the requests to other drafters, or to none; the rest goes to the live one.

        Only for engines that provide `request_routing`. Which request goes where is drawn at
        random, for shadow routes apart from all others: those need `shadow_drafting`. Replaces the
        routes before; drafters that no route names any more may be let go of.
        A route to a version that goes live is to be given up by the caller.

        Args:
            routes: shares that add up to 1 at most; none gives everything to the live drafter.

        Raises:
            BackendError: a drafter cannot be loaded beside the live one; the routes before stay.
        """
        if routes:
            raise BackendError("this engine cannot route requests to chosen drafters")

    def lineage(self, name: str) -> Backend:
        """Return this engine as one lineage sees it: its swaps, its routes, its status.

        Only for engines that provide `holds_lineages`. What is not a lineage's alone, as `finished`
        and `stop`, is left to the engine itself.

        Args:
            name: of a lineage in the plan that the engine was or will be started with.

        Raises:
            BackendError: this engine holds the default lineage alone.
        """
        raise BackendError(f"this engine holds one lineage of drafters: there is no {name!r}")

    @abstractmethod
    async def status(self) -> BackendStatus:
        """Return the live version, its checksum and the load, read from the engine."""

    @abstractmethod
    async def finished(self, after: int) -> list[RequestStats]:
        """Return requests that finished with `sequence > after`, oldest first."""

    @abstractmethod
    async def stop(self) -> None:
        """Release the engine. Callable twice, and after a failed `start`."""
