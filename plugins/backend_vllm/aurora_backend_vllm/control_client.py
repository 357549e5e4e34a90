"""The controller's end of the control routes."""

from __future__ import annotations

from typing import Any

import httpx

from aurora_core.errors import BackendError


class ControlClient:
    """Calls one server's routes below `/aurora`."""

    def __init__(self, url: str, token: str, *, timeout_s: float) -> None:
        """
        Args:
            url: base URL of the server, without `/v1`.
            token: of its control routes.
            timeout_s: longest time for one answer.
        """
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(timeout_s, connect=min(10.0, timeout_s)),
            trust_env=False,  # a proxy has no business between controller and engine
        )

    async def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Return the JSON answer of a control route.

        Raises:
            NoAnswer: the connection failed or took too long.
            BackendError: the server refused; the message is its own.
        """
        try:
            answer = await self._client.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise NoAnswer(method, path, error) from error
        if answer.status_code == 404:
            raise BackendError(
                f"the server at {self._client.base_url} has no route {path}: it runs without "
                "Aurora's half; start it as `aurora vllm-command` prints it"
            )
        if answer.is_error:
            raise BackendError(_sentence(answer))
        return answer.json()

    async def answers(self) -> bool:
        """Return whether the server is healthy and its engine has come up."""
        try:
            return (await self._client.get("/health", timeout=5.0)).status_code == 200
        except httpx.HTTPError:
            return False

    async def metrics(self) -> str:
        """Return the text of vLLM's own Prometheus endpoint.

        Raises:
            NoAnswer: the connection failed or took too long.
        """
        try:
            return (await self._client.get("/metrics")).raise_for_status().text
        except httpx.HTTPError as error:
            raise NoAnswer("GET", "/metrics", error) from error

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()


class NoAnswer(BackendError):
    """The server did not answer, for now or for ever."""

    def __init__(self, method: str, path: str, error: httpx.HTTPError) -> None:
        reason = str(error) or type(error).__name__
        super().__init__(f"vLLM does not answer {method} {path}: {reason}")


def _sentence(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"vLLM answered {answer.request.url.path} with status {answer.status_code}"
