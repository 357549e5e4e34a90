"""An OpenAI-compatible server, asked over HTTP with streaming, so that times can be taken.

Aurora's extensions (a drafter per request, token ids, statistics) ride along. A server that
refuses them is asked again without, once, and from then on without.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, Self

import httpx
from httpx_sse import SSEError, aconnect_sse
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from aurora_core.engine_process.engine_client import KEEPALIVE_S
from aurora_core.errors import BackendError, ConfigError
from aurora_core.traffic.completion import Completion, RequestFailed, StreamedAnswer
from aurora_core.traffic.prompts.prompt import Prompt

_logger = logging.getLogger(__name__)

Drafter = Literal["live", "none"] | int
"""Which drafter a request asks for: whichever is live, none, or a resident version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """How a prompt is to be answered."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    """Seed of the sampling; None leaves it to the server."""
    drafter: Drafter | None = None
    """Needs a server that knows Aurora's extensions, unless None."""
    record: bool | None = None
    """Whether the server may write a trace; None leaves it to the server."""
    route: str = ""
    """Label of the request in the server's statistics."""
    lineage: str = ""
    """Whose drafters are to serve it, `default` for the default ones; empty lets the server's rules
    decide."""
    num_logprobs: int | None = None
    """Alternatives per token to report log-probabilities of; None for none."""


class _Busy(Exception):
    def __init__(self, retry_after_s: float | None) -> None:
        self.retry_after_s = retry_after_s


class _Refused(RequestFailed):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}", message)
        self.status = status


class Endpoint:
    """A connection to one server. Use as an async context manager; safe for concurrent requests."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 300.0,
        max_retries: int = 10,
    ) -> None:
        """Check the arguments; nothing is sent yet.

        Args:
            url: base URL of the server, with or without `/v1`.
            model: name to ask for; None takes the first one the server lists.
            api_key: sent as a bearer token.
            timeout_s: longest time for one answer, waiting for the server to be free not counted.
            max_retries: times that a request is sent again after a 429.

        Raises:
            ConfigError: the URL is none.
        """
        self.url = url.rstrip("/").removesuffix("/v1")
        self.timeout_s, self.max_retries = timeout_s, max_retries
        self._model = model
        self._accepts_extensions = True
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"{url!r} is not a URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"{url!r} is not the URL of a server, such as http://127.0.0.1:8000")
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s, connect=min(10.0, timeout_s)),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEPALIVE_S
            ),
            # Reading certificates takes longer than a request to a server on this machine.
            verify=parsed.scheme == "https",
            # A proxy for the outside world must not be asked for a server on this machine.
            trust_env=not _is_loopback(parsed.host),
        )

    async def __aenter__(self) -> Self:
        """Raises `BackendError` if no server answers or it has no model to offer."""
        try:
            if self._model is None:
                self._model = await self._first_model()
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    @property
    def model(self) -> str:
        """Name of the model that is asked."""
        assert self._model is not None, "enter the endpoint first"
        return self._model

    async def complete(self, prompt: Prompt, settings: RequestSettings) -> Completion:
        """Send one prompt and return the whole answer.

        After a 429 the request waits for as long as the server asked and is sent again.

        Raises:
            RequestFailed: no complete answer, for whatever reason.
        """
        body = self._body(prompt, settings)
        if not self._accepts_extensions:
            return await self._retrying(body)
        try:
            return await self._retrying(body | _extensions(settings))
        except _Refused as refusal:
            if refusal.status not in (400, 422) or settings.drafter is not None:
                raise
            completion = await self._retrying(body)
            _logger.info("the server at %s refuses Aurora's extensions: %s", self.url, refusal)
            self._accepts_extensions = False
            return completion

    def _body(self, prompt: Prompt, settings: RequestSettings) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": prompt.as_messages(),
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if settings.top_p < 1:
            body["top_p"] = settings.top_p
        if settings.seed is not None:
            body["seed"] = settings.seed
        if settings.num_logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": settings.num_logprobs}
        return body

    async def _first_model(self) -> str:
        try:
            response = await self._client.get(f"{self.url}/v1/models")
        except httpx.HTTPError as error:
            raise BackendError(
                f"no server answers at {self.url}: {_reason(error)}; start one with `aurora run`, "
                "or correct the URL"
            ) from error
        if response.status_code in (401, 403):
            raise BackendError(
                f"the server at {self.url} wants an API key; set AURORA_API_KEY to one"
            )
        try:
            return str(response.raise_for_status().json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise BackendError(
                f"the server at {self.url} does not list its models as an OpenAI-compatible one "
                "does; correct the URL, or name the model"
            ) from error

    async def _retrying(self, body: dict[str, Any]) -> Completion:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Busy),
            wait=_wait,
            stop=stop_after_attempt(self.max_retries + 1),
            reraise=True,
        )
        try:
            return await retrying(self._once, body, retrying)
        except _Busy as busy:
            raise RequestFailed("busy", f"429 after {self.max_retries} retries") from busy
        except TimeoutError as error:
            raise RequestFailed("timeout", f"no answer within {self.timeout_s:g} s") from error
        except httpx.TimeoutException as error:
            raise RequestFailed("timeout", _reason(error)) from error
        except httpx.ConnectError as error:
            raise RequestFailed("connection", _reason(error)) from error
        except SSEError as error:
            raise RequestFailed("malformed", f"not an event stream: {error}") from error
        except httpx.HTTPError as error:
            raise RequestFailed("disconnected", _reason(error)) from error

    async def _once(self, body: dict[str, Any], retrying: AsyncRetrying) -> Completion:
        answer = StreamedAnswer(time.perf_counter())
        async with (
            asyncio.timeout(self.timeout_s),
            aconnect_sse(
                self._client, "POST", f"{self.url}/v1/chat/completions", json=body
            ) as source,
        ):
            response = source.response
            if response.status_code == 429:
                raise _Busy(_retry_after_s(response.headers.get("Retry-After")))
            if response.status_code != 200:
                await response.aread()
                raise _Refused(response.status_code, _message(response))
            # To its very end, so that the connection can be used again.
            async for event in source.aiter_sse():
                now = time.perf_counter()
                if event.data == "[DONE]":
                    continue
                try:
                    chunk = json.loads(event.data)
                except ValueError as error:
                    raise RequestFailed("malformed", f"not JSON: {event.data!r:.120}") from error
                answer.add(chunk, now)
        num_retries = retrying.statistics["attempt_number"] - 1
        return answer.complete(time.perf_counter(), num_retries=num_retries)


def _extensions(settings: RequestSettings) -> dict[str, Any]:
    wanted = {
        "drafter": settings.drafter,
        "record": settings.record,
        "route": settings.route,
        "lineage": settings.lineage,
    }
    aurora = {key: value for key, value in wanted.items() if value not in (None, "")}
    extensions: dict[str, Any] = {"return_token_ids": True}
    if aurora:
        extensions["aurora"] = aurora
    return extensions


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _Busy) and error.retry_after_s is not None:
        return error.retry_after_s
    longest = min(10.0, 0.25 * 2.0**state.attempt_number)
    return random.uniform(0.5, 1.0) * longest


def _retry_after_s(header: str | None) -> float | None:
    """Read seconds or a date; None for anything else."""
    if header is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(header))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    return None


def _message(response: httpx.Response) -> str:
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        plain = response.json()
        error = plain.get("error", plain)
        return str(error["message"] if isinstance(error, dict) and "message" in error else error)
    return response.text[:200]


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
