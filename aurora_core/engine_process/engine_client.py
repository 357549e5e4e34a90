"""The controller's connection to one engine's HTTP server; its backend knows the routes."""

from __future__ import annotations

from typing import Any

import httpx

from aurora_core.errors import BackendError

_CONNECT_TIMEOUT_S = 10.0
_HEALTH_TIMEOUT_S = 10.0
KEEPALIVE_S = 2.0
"""Seconds for which an idle connection is used again. Servers close theirs after 5: the client has
to be the first one, or a request now and then meets a connection that is just being closed."""


class EngineClient:
    """Sends requests with the token of the engine's control routes."""

    def __init__(self, url: str, token: str, *, name: str, timeout_s: float) -> None:
        """
        Args:
            url: base URL of the server, without `/v1`.
            token: of its control routes.
            name: of the engine, for messages.
            timeout_s: longest time for one answer.
        """
        self.url = url
        self._name = name
        self.http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(timeout_s, connect=min(_CONNECT_TIMEOUT_S, timeout_s)),
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
            trust_env=False,  # a proxy has no business between controller and engine
        )

    async def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """Return an answer, whatever its status.

        Raises:
            NoAnswer: the connection failed or took too long.
        """
        try:
            return await self.http.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise NoAnswer(self._name, method, path, error) from error

    async def answers(self) -> bool:
        """Return whether the server is healthy and its engine has come up."""
        try:
            return (await self.http.get("/health", timeout=_HEALTH_TIMEOUT_S)).status_code == 200
        except httpx.HTTPError:
            return False

    async def metrics(self) -> str:
        """Return the text of the engine's own Prometheus endpoint.

        Raises:
            NoAnswer: the connection failed or took too long.
            BackendError: the server has none.
        """
        answer = await self.request("GET", "/metrics")
        if answer.is_error:
            raise BackendError(
                f"{self._name} answers GET /metrics with status {answer.status_code}"
            )
        return answer.text

    async def close(self) -> None:
        """Let go of the connections."""
        await self.http.aclose()


class NoAnswer(BackendError):
    """The server did not answer, for now or for ever."""

    def __init__(self, name: str, method: str, path: str, error: httpx.HTTPError) -> None:
        reason = str(error) or type(error).__name__
        super().__init__(f"{name} does not answer {method} {path}: {reason}")
