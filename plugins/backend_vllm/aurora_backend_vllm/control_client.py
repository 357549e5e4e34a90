"""The controller's end of the control routes."""

from __future__ import annotations

from typing import Any

import httpx

from aurora_core.engine_process.engine_client import EngineClient
from aurora_core.errors import BackendError


class ControlClient(EngineClient):
    """Calls one server's routes below `/aurora`."""

    def __init__(self, url: str, token: str, *, timeout_s: float) -> None:
        """See `EngineClient` for the arguments."""
        super().__init__(url, token, name="vLLM", timeout_s=timeout_s)

    async def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Return the JSON answer of a control route.

        Raises:
            NoAnswer: the connection failed or took too long.
            BackendError: the server refused; the message is its own.
        """
        answer = await self.request(method, path, **arguments)
        if answer.status_code == 404:
            raise BackendError(
                f"the server at {self.url} has no route {path}: it runs without "
                "Aurora's half; start it as `aurora vllm-command` prints it"
            )
        if answer.is_error:
            raise BackendError(_sentence(answer))
        return answer.json()


def _sentence(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"vLLM answered {answer.request.url.path} with status {answer.status_code}"
