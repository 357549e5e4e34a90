"""Aurora's field of a request, in the words of a stock SGLang server.

    aurora.record, aurora.tenant, aurora.route   ->  custom_params, which reach the scheduler
    aurora.drafter                               ->  refused unless it is `live`

SGLang ignores what it does not know: a client that asked not to be recorded, or to be answered
without drafts, would not get it, and not be told.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

FIELD = "aurora"
COMPLETIONS = ("/v1/chat/completions", "/v1/completions")
_MAX_LABEL = 128


class UnfitField(Exception):
    """A request asks for what this engine cannot do; the message is for the client."""


def translate(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request with Aurora's field among SGLang's `custom_params`.

    Raises:
        UnfitField: the field has an unfit value, or asks for another drafter.
    """
    translated = dict(body)
    fields = translated.pop(FIELD)
    if not isinstance(fields, Mapping):
        raise UnfitField("`aurora` must be an object")
    unknown = sorted(fields.keys() - {"drafter", "record", "tenant", "route"})
    if unknown:
        raise UnfitField(f"`aurora.{unknown[0]}` is not known")
    if fields.get("drafter", "live") not in (None, "live"):
        raise UnfitField(
            "`aurora.drafter` must be `live`: SGLang drafts for all requests or for none"
        )
    if not isinstance(fields.get("record", True), bool):
        raise UnfitField("`aurora.record` must be true or false")
    for key in ("tenant", "route"):
        label = fields.get(key, "")
        if not isinstance(label, str) or len(label) > _MAX_LABEL:
            raise UnfitField(f"`aurora.{key}` must be text of at most {_MAX_LABEL} characters")
    wishes = {key: value for key, value in fields.items() if key != "drafter"}
    own = translated.get("custom_params")
    translated["custom_params"] = {**(own if isinstance(own, Mapping) else {}), FIELD: wishes}
    return translated


class RequestFields:
    """ASGI middleware that translates completions; everything else passes through untouched."""

    def __init__(self, app: Application) -> None:
        """
        Args:
            app: the rest of the server.
        """
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in COMPLETIONS:
            await self._app(scope, receive, send)
            return
        body = await _read_body(receive)
        try:
            request = json.loads(body)
        except ValueError:  # SGLang's own answer to it is the right one
            request = None
        if isinstance(request, dict) and FIELD in request:
            try:
                body = json.dumps(translate(request)).encode()
            except UnfitField as error:
                await _refuse(send, str(error))
                return
            scope = {**scope, "headers": _with_length(scope["headers"], len(body))}
        await self._app(scope, _replay(body, receive), send)


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


async def _refuse(send: Send, message: str) -> None:
    error = {"message": message, "type": "BadRequestError", "code": 400}
    data = json.dumps({"object": "error", "error": error, **error}).encode()
    headers = _with_length([(b"content-type", b"application/json")], len(data))
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": data})
