"""ASGI middleware of vLLM's OpenAI server: `--middleware` of its command line.

    /aurora/*                                  control routes, each with the token
    /v1/chat/completions, /v1/completions      Aurora's fields in, the `aurora` field out

Everything else passes through untouched. A response is looked into only if its client asked for
token ids or sent a field of Aurora.
"""

from __future__ import annotations

import hmac
import json
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from aurora_backend_vllm.engine.aurora_fields import FIELD, UnfitField, translate
from aurora_backend_vllm.engine.control import EngineControl
from aurora_backend_vllm.engine.response_field import ResponseField
from aurora_backend_vllm.engine.settings import TOKEN_VARIABLE
from aurora_core.errors import AuroraError

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTROL = "/aurora/"
COMPLETIONS = ("/v1/chat/completions", "/v1/completions")


class AuroraMiddleware:
    """Adds Aurora's routes and fields to a server whose `app.state.engine_client` is vLLM's."""

    def __init__(self, app: Application) -> None:
        """
        Args:
            app: the rest of the server.
        """
        self._app = app
        self._token = os.environ.get(TOKEN_VARIABLE, "")
        self._control: EngineControl | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        path = scope.get("path", "")
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif path.startswith(CONTROL):
            await self._answer_control(scope, receive, send)
        elif path in COMPLETIONS and scope["method"] == "POST":
            await self._complete(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _control_of(self, scope: Scope) -> EngineControl:
        if self._control is None:
            self._control = EngineControl(scope["app"].state.engine_client)
        return self._control

    async def _answer_control(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if not self._token or not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            await _respond(send, 401, _error("control routes need the token of this server"))
            return
        try:
            answer = await self._run_control(scope, receive)
        except AuroraError as error:
            await _respond(send, 409, _error(str(error)))
        except (ValueError, KeyError, TypeError) as error:
            await _respond(send, 400, _error(f"the request is not understood: {error!r}"))
        else:
            if answer is None:
                await _respond(send, 404, _error("there is no such control route"))
            else:
                await _respond(send, 200, answer)

    async def _run_control(self, scope: Scope, receive: Receive) -> Any:
        control = self._control_of(scope)
        route = (scope["method"], scope["path"].removeprefix(CONTROL))
        if route == ("GET", "status"):
            return await control.status()
        if route == ("GET", "requests"):
            query = parse_qs(scope.get("query_string", b"").decode())
            return await control.finished(int(query.get("after", ["-1"])[0]))
        if route == ("POST", "swap"):
            body = json.loads(await _read_body(receive))
            version, checksum = body["version"], body.get("checksum", "")
            if not isinstance(version, int | None) or not isinstance(checksum, str):
                raise ValueError("`version` is a number or null, `checksum` is text")
            return await control.swap(version, checksum)
        return None

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        try:
            request = json.loads(body)
        except ValueError:
            request = None
        if not isinstance(request, dict):  # vLLM's own answer to it is the right one
            await self._app(scope, _replay(body, receive), send)
            return
        control = self._control_of(scope)
        wants_field = FIELD in request or bool(request.get("return_token_ids"))
        try:
            translated = translate(
                request,
                live_version=control.live_version,
                arrived=time.time(),
                salt=control.settings.stale_draft_cache == "salt",
            )
        except UnfitField as error:
            await _respond(send, 400, _error(str(error)))
            return
        data = json.dumps(translated).encode()
        scope = {**scope, "headers": _with_length(scope["headers"], len(data))}
        if wants_field:
            send = _FieldSender(send, ResponseField(lambda: control.live_version))
        await self._app(scope, _replay(data, receive), send)


class _FieldSender:
    """Sends a response on, with the field in it."""

    def __init__(self, send: Send, field: ResponseField) -> None:
        self._send, self._field = send, field
        self._start: Message | None = None
        self._is_stream = False
        self._pending = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            kind = headers.get(b"content-type", b"")
            self._is_stream = kind.startswith(b"text/event-stream")
            if self._is_stream:
                await self._send(message)
            else:
                self._start = message  # its length is not known yet
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        self._pending += message.get("body", b"")
        more = bool(message.get("more_body"))
        if self._is_stream:
            await self._send({**message, "body": self._take_events(flush=not more)})
        elif not more:
            await self._send_whole(message)

    def _take_events(self, *, flush: bool) -> bytes:
        *events, self._pending = self._pending.split(b"\n\n")
        ready = b"".join(self._field.add_to_event(event + b"\n\n") for event in events)
        if flush:
            ready, self._pending = ready + self._pending, b""
        return ready

    async def _send_whole(self, message: Message) -> None:
        assert self._start is not None
        body = self._pending
        if self._start["status"] == 200:
            body = self._field.add_to_body(body)
        headers = _with_length(self._start["headers"], len(body))
        await self._send({**self._start, "headers": headers})
        await self._send({**message, "body": body})


async def _read_body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts)  # the client went away
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body once, and then what the connection gives."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _with_length(headers: Any, length: int) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", str(length).encode())]


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


async def _respond(send: Send, status: int, answer: Any) -> None:
    data = json.dumps(answer).encode()
    headers = _with_length([(b"content-type", b"application/json")], len(data))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
