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
from typing import Any
from urllib.parse import parse_qs

from aurora_backend_vllm.engine.aurora_fields import translate
from aurora_backend_vllm.engine.control import EngineControl
from aurora_backend_vllm.engine.response_field import ResponseField
from aurora_backend_vllm.engine.settings import TOKEN_VARIABLE
from aurora_core.engine_process.asgi import (
    Application,
    Receive,
    RewritingSender,
    Scope,
    Send,
    read_body,
    replay,
    respond,
    with_length,
)
from aurora_core.engine_process.aurora_field import FIELD, UnfitField
from aurora_core.errors import AuroraError

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
            await respond(send, 401, _error("control routes need the token of this server"))
            return
        try:
            answer = await self._run_control(scope, receive)
        except AuroraError as error:
            await respond(send, 409, _error(str(error)))
        except (ValueError, KeyError, TypeError) as error:
            await respond(send, 400, _error(f"the request is not understood: {error!r}"))
        else:
            if answer is None:
                await respond(send, 404, _error("there is no such control route"))
            else:
                await respond(send, 200, answer)

    async def _run_control(self, scope: Scope, receive: Receive) -> Any:
        control = self._control_of(scope)
        route = (scope["method"], scope["path"].removeprefix(CONTROL))
        if route == ("GET", "status"):
            return await control.status()
        if route == ("GET", "requests"):
            query = parse_qs(scope.get("query_string", b"").decode())
            return await control.finished(int(query.get("after", ["-1"])[0]))
        if route == ("POST", "swap"):
            body = json.loads(await read_body(receive))
            version, checksum = body["version"], body.get("checksum", "")
            if not isinstance(version, int | None) or not isinstance(checksum, str):
                raise ValueError("`version` is a number or null, `checksum` is text")
            return await control.swap(version, checksum)
        return None

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        try:
            request = json.loads(body)
        except ValueError:
            request = None
        if not isinstance(request, dict):  # vLLM's own answer to it is the right one
            await self._app(scope, replay(body, receive), send)
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
            await respond(send, 400, _error(str(error)))
            return
        data = json.dumps(translated).encode()
        scope = {**scope, "headers": with_length(scope["headers"], len(data))}
        if wants_field:
            send = RewritingSender(send, ResponseField(lambda: control.live_version))
        await self._app(scope, replay(data, receive), send)


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}
