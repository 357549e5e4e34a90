"""Shares of the requests that other drafters than the live one answer, or none, or draft beside.

POST /aurora/routing --> load what is missing --> routes --> let go of what nobody needs
request that names no drafter --> choose --> a resident version, "none" or "live"
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from aurora_core.errors import BackendError

if TYPE_CHECKING:
    from aurora_backend_torch.engine import Engine


class RouteBody(BaseModel):
    """One share."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: int | None = Field(ge=1)
    """None answers without speculation."""
    checksum: str = Field(default="", max_length=64)
    """sha256 of the version's model.safetensors; empty with version None."""
    share: float = Field(gt=0, le=1)
    shadow: bool = False
    """Whether the version drafts beside these requests instead of answering them."""


class RoutingBody(BaseModel):
    """All shares; what they leave goes to the live drafter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    routes: list[RouteBody] = Field(max_length=8)


class Routing:
    """Draws which drafter answers a request. `set` and `choose` may run on different threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._routes: tuple[RouteBody, ...] = ()
        self._loaded: set[int] = set()

    def set(self, routes: Sequence[RouteBody]) -> None:
        """Load what is missing, route, and let go of versions that were loaded for routes before.

        Raises:
            BackendError, CheckpointError: a version cannot be loaded; the routes before stay.
        """
        for shadow in (False, True):
            if sum(route.share for route in routes if route.shadow == shadow) > 1:
                kind = "shadow routes" if shadow else "routes"
                raise BackendError(f"the shares of all {kind} add up to more than 1")
        if any(route.shadow and route.version is None for route in routes):
            raise BackendError("a shadow route names no version; without one nothing is drafted")
        wanted = {route.version for route in routes if route.version is not None}
        live = self._engine.status().live_version
        for route in routes:
            if route.version is not None and not self._engine.is_resident(route.version):
                self._engine.load_resident(route.version, route.checksum)
                self._loaded.add(route.version)
        self._routes = tuple(routes)
        for version in self._loaded - wanted:
            self._loaded.discard(version)
            if version != live:
                with contextlib.suppress(BackendError):  # the engine made room by itself
                    self._engine.unload_resident(version)

    def choose(self, request_id: str) -> Literal["live", "none"] | int:
        """Return who answers a request that names no drafter.

        Args:
            request_id: random hexadecimal digits, from which the share is drawn.
        """
        route = self._draw(request_id[:8], shadow=False)
        if route is None:
            return "live"
        if route.version is None:
            return "none"
        # One that failed while drafting is gone, and a request must not fail for it.
        return route.version if self._engine.is_resident(route.version) else "live"

    def choose_shadow(self, request_id: str) -> int | None:
        """Return the version that drafts beside a request, whoever answers it; most often None.

        Args:
            request_id: random hexadecimal digits; others than those that draw who answers.
        """
        route = self._draw(request_id[8:16], shadow=True)
        return None if route is None else route.version

    def _draw(self, digits: str, *, shadow: bool) -> RouteBody | None:
        place = int(digits, 16) / 16 ** len(digits)
        for route in self._routes:
            if route.shadow == shadow:
                place -= route.share
                if place < 0:
                    return route
        return None
