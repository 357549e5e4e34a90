"""Who gets which drafter beside the live one: a version on trial, and a share without any.

judged "canary" --> begin --> Backend.route --> requests of a share --> evidence --> judged
    or "shadow"     end   <-- promoted, dropped, or another version goes live
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aurora_core.controller.evidence import LiveTraffic
from aurora_core.errors import BackendError
from aurora_core.interfaces import Backend
from aurora_core.records import DraftVersion, Route

log = logging.getLogger(__name__)

_FIRST_PLAIN_SHARE = 0.1
_FIRST_PLAIN_REQUESTS = 10
"""Until so many requests went without speculation, more of them do: without any there is nothing
to compare with."""


def can_route(backend: Backend) -> bool:
    """Return whether shares of the requests can be given to other drafters.

    An engine may answer single requests that name a drafter and yet have no routes.
    """
    return backend.provides.request_routing and type(backend).route is not Backend.route


def can_shadow(backend: Backend) -> bool:
    """Return whether a version can draft beside the one that serves."""
    return backend.provides.shadow_drafting and can_route(backend)


class Trials:
    """Routes shares of the requests; does nothing on engines that cannot."""

    def __init__(
        self,
        backend: Backend,
        traffic: LiveTraffic,
        *,
        plain_share: float,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            backend: the running engine.
            traffic: counts what the version on trial serves.
            plain_share: share of the requests without speculation while a drafter is live.
            clock: Unix seconds.
        """
        self.can_route, self.can_shadow = can_route(backend), can_shadow(backend)
        self.draft: DraftVersion | None = None
        """The version on trial."""
        self._share, self._shadow = 0.0, False
        self._backend, self._traffic, self._clock = backend, traffic, clock
        self._plain_share = plain_share if self.can_route else 0.0
        self._routes: tuple[Route, ...] = ()
        self._refused: tuple[Route, ...] | None = None

    async def begin(
        self,
        draft: DraftVersion,
        share: float,
        *,
        live: DraftVersion | None,
        shadow: bool = False,
    ) -> None:
        """Let a version serve a share of the requests, or draft beside them.

        Raises:
            BackendError: the engine cannot load it beside the live one; nothing changed.
        """
        before = self._shadow
        self._shadow = shadow
        try:
            await self._apply(self._wanted(draft, share, live=live))
        except BaseException:
            self._shadow = before
            raise
        self.draft, self._share = draft, share
        self._traffic.begin_trial(draft.version, share, self._clock(), shadow=shadow)

    def is_running(self, draft: DraftVersion, *, shadow: bool) -> bool:
        """Return whether a version is on trial already, in this way."""
        return self.draft is draft and self._shadow == shadow

    async def end(self, *, live: DraftVersion | None) -> None:
        """Give the requests of the version on trial back to what is live."""
        if self.draft is not None:
            self.draft, self._share, self._shadow = None, 0.0, False
            self._traffic.end_trial()
        await self.update(live=live)

    async def update(self, *, live: DraftVersion | None) -> None:
        """Keep the share without speculation in step with what is live and what is known.

        Never raises: serving goes on with the routes before.
        """
        wanted = self._wanted(self.draft, self._share, live=live)
        if wanted == self._refused:
            return
        try:
            await self._apply(wanted)
        except BackendError as error:
            self._refused = wanted
            log.warning("requests are routed as before: %s", error)

    async def stop(self) -> None:
        """Give every request to the live drafter, for what must be measured alone."""
        self._plain_share = 0.0
        await self.end(live=None)

    def _wanted(
        self, draft: DraftVersion | None, share: float, *, live: DraftVersion | None
    ) -> tuple[Route, ...]:
        routes = []
        if draft is not None:
            routes.append(Route(draft=draft, share=share, shadow=self._shadow))
        plain_share = self._plain_share if live is not None else 0.0
        if plain_share:
            known = self._traffic.without_speculation()
            if known is None or known.num_requests < _FIRST_PLAIN_REQUESTS:
                plain_share = max(plain_share, _FIRST_PLAIN_SHARE)
            routes.append(Route(draft=None, share=plain_share))
        return tuple(routes)

    async def _apply(self, routes: tuple[Route, ...]) -> None:
        if self.can_route and routes != self._routes:
            await self._backend.route(routes)
            self._routes = routes
