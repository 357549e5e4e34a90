"""A running backend as a test sees it: its control methods and its HTTP API, without `async`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from aurora_core.interfaces import Backend, ServePlan
from aurora_core.records import BackendStatus, DraftVersion, RequestStats, SwapReceipt

Result = TypeVar("Result")

TIMEOUT_S = 120.0
PLAIN = {"max_tokens": 16, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
"""Fields of a request that is told nothing else."""
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One finished completion."""

    output: tuple[int, ...] | str
    """Token ids, or the text where the engine does not return them."""
    num_tokens: int
    prompt_token_ids: tuple[int, ...]
    """Empty where the engine does not return them."""


class ServedBackend:
    """Runs one backend on an event loop of its own; the loop stands still between two calls."""

    def __init__(self, backend: Backend, plan: ServePlan, *, settling_s: float = 0.0) -> None:
        """
        Args:
            backend: not started.
            plan: to start it with.
            settling_s: seconds that it may take to note what it has answered already.
        """
        self.backend, self.plan = backend, plan
        self._settling_s = settling_s
        self._num_answered = 0
        self._runner = asyncio.Runner()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Wait for anything that belongs to the backend's loop."""
        return self._runner.run(coroutine)

    def start(self) -> None:
        """Start the engine."""
        self.run(self.backend.start(self.plan))

    def swap(self, version: DraftVersion | None) -> SwapReceipt:
        """Make a version live."""
        return self.run(self.backend.swap(version))

    def status(self) -> BackendStatus:
        """Ask the engine how it is."""
        return self.run(self.backend.status())

    def idle_status(self) -> BackendStatus:
        """Ask the engine how it is once it has noted that nothing runs any more."""
        return self.eventually(
            self.status, lambda status: status.num_running == status.num_waiting == 0
        )

    def finished(self, after: int = 0) -> list[RequestStats]:
        """Return requests that finished, from a sequence number on, once all are noted."""
        if self._settling_s:
            self.eventually(
                lambda: self.run(self.backend.finished(0)),
                lambda noted: len(noted) >= self._num_answered,
            )
        return self.run(self.backend.finished(after))

    def eventually(self, look: Callable[[], Result], holds: Callable[[Result], bool]) -> Result:
        """Return what is seen as soon as it holds, or when the engine has had time to settle."""
        deadline = time.monotonic() + self._settling_s
        while not holds(seen := look()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return seen

    def newest(self) -> int:
        """Return the sequence number of the last finished request, 0 without any."""
        finished = self.finished()
        return finished[-1].sequence if finished else 0

    def stop(self) -> None:
        """Stop the engine."""
        self.run(self.backend.stop())

    def close(self) -> None:
        """Stop the engine and the loop."""
        try:
            self.stop()
        finally:
            self._runner.close()

    def ask(
        self, prompts: Sequence[str], *, seeds: Sequence[int] = (), **fields: Any
    ) -> list[Answered]:
        """Ask for completions of all prompts at once."""
        return self.run(self.ask_async(prompts, seeds=seeds, **fields))

    async def ask_async(
        self, prompts: Sequence[str], *, seeds: Sequence[int] = (), **fields: Any
    ) -> list[Answered]:
        """Ask for completions of all prompts at once, greedily unless told otherwise.

        Args:
            seeds: one per prompt, where they are sampled.
            fields: of the request, for example `max_tokens`.
        """
        async with self._client() as client:
            body = {"model": await _served_model(client), **PLAIN, **fields}
            bodies = [
                {**body, "prompt": prompt, **({"seed": seeds[n]} if seeds else {})}
                for n, prompt in enumerate(prompts)
            ]
            answers = await asyncio.gather(*(_complete(client, each) for each in bodies))
        self._num_answered += len(answers)
        return [_read(answer) for answer in answers]

    def acceptance_length(self, prompts: Sequence[str], **fields: Any) -> float:
        """Return the acceptance length over all steps of prompts, asked one after the other.

        Args:
            fields: of every request.
        """
        before = self.newest()
        for prompt in prompts:
            self.ask([prompt], **fields)
        finished = self.finished(before)
        num_accepted = sum(sum(request.accepted_per_position) for request in finished)
        return 1 + num_accepted / sum(request.num_steps for request in finished)

    def complete(self, **fields: Any) -> dict[str, Any]:
        """Ask for one completion, and return the whole answer as it came."""

        async def ask() -> dict[str, Any]:
            async with self._client() as client:
                body = {"model": await _served_model(client), **PLAIN, **fields}
                return await _complete(client, body)

        answer = self.run(ask())
        self._num_answered += 1
        return answer

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.backend.url, timeout=TIMEOUT_S, trust_env=False, verify=False
        )


async def _served_model(client: httpx.AsyncClient) -> str:
    models = (await client.get("/v1/models")).raise_for_status().json()["data"]
    return str(models[0]["id"])


async def _complete(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = (await client.post("/v1/completions", json=body)).raise_for_status()
    plain: dict[str, Any] = answer.json()
    return plain


def _read(answer: Mapping[str, Any]) -> Answered:
    [choice] = answer["choices"]
    token_ids = choice.get("token_ids")
    prompt = answer.get("prompt_token_ids") or choice.get("prompt_token_ids") or ()
    return Answered(
        output=choice["text"] if token_ids is None else tuple(token_ids),
        num_tokens=answer["usage"]["completion_tokens"],
        prompt_token_ids=tuple(prompt),
    )
