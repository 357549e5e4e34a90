"""Refuses request bodies above a size, before they are held in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from aurora_backend_torch.api_errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware that answers 413 in the API's own shape."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a counted body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        message = f"the body is larger than {self._max_body_bytes} bytes"
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_body_bytes:
            await ApiError(413, message).response()(scope, receive, send)
            return
        num_bytes = 0

        async def receive_counted() -> Message:
            nonlocal num_bytes
            part = await receive()
            num_bytes += len(part.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise HTTPException(413, message)
            return part

        await self._app(scope, receive_counted, send)
