"""What a middleware in an engine's HTTP server needs: ASGI's types, bodies in, responses changed.

Runs in the engine's environment and imports the standard library alone.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


async def read_body(receive: Receive) -> bytes:
    """Return the whole body of a request; what came of it if its client went away."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body once, and then what the connection gives."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def with_length(headers: Headers, length: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of a message whose body has become this long."""
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", str(length).encode())]


async def respond(send: Send, status: int, answer: Any) -> None:
    """Send a whole response in JSON."""
    data = json.dumps(answer).encode()
    headers = with_length([(b"content-type", b"application/json")], len(data))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


class Rewriting(ABC):
    """Changes one response; either method is called, as the response is a stream or a whole."""

    @abstractmethod
    def add_to_event(self, event: bytes) -> bytes:
        """Return one server-sent event, its two line ends included, as it is to be sent."""

    @abstractmethod
    def add_to_body(self, body: bytes) -> bytes:
        """Return the body of a response with status 200 as it is to be sent."""


class RewritingSender:
    """A `send` that passes a response on changed, event by event or as a whole."""

    def __init__(self, send: Send, rewriting: Rewriting) -> None:
        """
        Args:
            send: of the connection.
            rewriting: for this response.
        """
        self._send, self._rewriting = send, rewriting
        self._start: Message | None = None
        self._is_stream = False
        self._pending = b""

    async def __call__(self, message: Message) -> None:
        """Send one message of the response, or keep it until more is known."""
        if message["type"] == "http.response.start":
            kind = dict(message["headers"]).get(b"content-type", b"")
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
        ready = b"".join(self._rewriting.add_to_event(event + b"\n\n") for event in events)
        if flush:
            ready, self._pending = ready + self._pending, b""
        return ready

    async def _send_whole(self, message: Message) -> None:
        assert self._start is not None
        body = self._pending
        if self._start["status"] == 200:
            body = self._rewriting.add_to_body(body)
        headers = with_length(self._start["headers"], len(body))
        await self._send({**self._start, "headers": headers})
        await self._send({**message, "body": body})
