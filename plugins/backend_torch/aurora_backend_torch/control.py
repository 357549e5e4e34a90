"""Control routes: status, swaps and resident drafters. Every one needs the token.

Versions are named by number and resolved below the run's own `versions_dir`; no route takes a path.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from aurora_backend_torch.api_errors import ApiError, ErrorBody
from aurora_backend_torch.routing import RoutingBody
from aurora_core.errors import AuroraError
from aurora_core.wire import to_dict

if TYPE_CHECKING:
    from aurora_backend_torch.generation_service import GenerationService
    from aurora_core.records import BackendStatus

logger = logging.getLogger(__name__)


class VersionBody(BaseModel):
    """Names a published version."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: int = Field(ge=1)
    lineage: str = Field(default="", max_length=64)
    """Whose version it is; empty for the default lineage."""


class SwapBody(BaseModel):
    """Names the version to make live; None switches speculation off."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: int | None = Field(ge=1)
    checksum: str = Field(default="", max_length=64)
    """sha256 of the version's model.safetensors; empty with version None."""
    lineage: str = Field(default="", max_length=64)
    """Whose requests it is for; empty for the default lineage."""


def read_status(service: GenerationService, lineage: str = "") -> BackendStatus:
    """Return the status of a lineage with this process's resident memory.

    Raises:
        BackendError: there is no such lineage.
    """
    memory_mib = psutil.Process().memory_info().rss / 2**20
    status: BackendStatus = service.engine.status(lineage=lineage)
    return replace(status, memory_mib=memory_mib)


def control_routes(service: GenerationService, token: str, stop: Callable[[], None]) -> APIRouter:
    """Return the routes below `/aurora`.

    Args:
        token: required as `Authorization: Bearer`; empty refuses everything.
        stop: begins the end of the process.
    """
    expected = f"Bearer {token}".encode()

    async def require_token(request: Request) -> None:
        given = request.headers.get("Authorization", "").encode()
        if not token or not hmac.compare_digest(given, expected):
            raise ApiError(
                401,
                "control routes need the token of this engine process",
                headers={"WWW-Authenticate": "Bearer"},
            )

    router = APIRouter(
        prefix="/aurora",
        dependencies=[Depends(require_token)],
        responses={"4XX": {"model": ErrorBody}},
    )
    one_change_at_a_time = asyncio.Lock()

    async def change(action: Callable[[], Any]) -> Any:
        """Run a change of drafters on a worker thread, after those before it."""
        async with one_change_at_a_time:
            try:
                return await asyncio.to_thread(action)
            except AuroraError as error:
                raise ApiError(409, str(error), code="refused") from error

    @router.get("/status")
    async def status(lineage: str = "") -> dict[str, Any]:
        """Return the live version of a lineage, and the load."""
        try:
            return to_dict(read_status(service, lineage))
        except AuroraError as error:
            raise ApiError(404, str(error), param="lineage") from error

    @router.get("/requests")
    async def requests(after: int = -1) -> list[dict[str, Any]]:
        """Return statistics of requests that finished after a sequence number."""
        return [to_dict(stats) for stats in service.engine.finished(after)]

    @router.post("/swap")
    async def swap(body: SwapBody) -> dict[str, Any]:
        """Make a version live between two steps, or switch speculation off."""
        if body.version is not None and not body.checksum:
            raise ApiError(400, "checksum is required with a version", param="checksum")
        try:
            receipt = await change(
                lambda: service.engine.swap(body.version, body.checksum, lineage=body.lineage)
            )
        except ApiError:
            service.metrics.swap_refused()
            raise
        service.metrics.swapped(receipt)
        logger.info(
            "version %s is live%s; loading took %.1f ms, decoding waited %.2f ms",
            receipt.version,
            f" in lineage {body.lineage}" if body.lineage else "",
            receipt.load_ms,
            receipt.stall_ms,
        )
        return to_dict(receipt)

    @router.post("/drafters")
    async def load_resident(body: VersionBody) -> dict[str, Any]:
        """Load a drafter beside the live one."""
        await change(lambda: service.engine.load_resident(body.version, lineage=body.lineage))
        return {"version": body.version, "resident": True}

    @router.delete("/drafters/{version}")
    async def unload_resident(version: int, lineage: str = "") -> dict[str, Any]:
        """Drop a drafter that is not live."""
        await change(lambda: service.engine.unload_resident(version, lineage=lineage))
        return {"version": version, "resident": False}

    @router.post("/routing")
    async def route(body: RoutingBody) -> dict[str, Any]:
        """Give shares of the requests that name no drafter to resident drafters, or to none."""
        routing = service.routing.get(body.lineage)
        if routing is None:
            raise ApiError(404, f"there is no lineage {body.lineage!r} here", param="lineage")
        await change(lambda: routing.set(body.routes))
        return body.model_dump()

    @router.post("/shutdown", status_code=202)
    async def shutdown() -> dict[str, str]:
        """Stop serving and end the process."""
        stop()
        return {"status": "stopping"}

    return router
