"""An OpenAI-compatible server without a model, on a real loopback port, that can misbehave.

Its answers are a function of the prompt. With `extensions` it behaves like an engine of Aurora.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import fastapi
import pytest
import uvicorn
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse


@dataclass
class FakeOpenAI:
    """What the server does, and what it was asked. Reset for every test."""

    url: str = ""
    name: str = ""
    """Added to what is noted, where two servers share a list."""
    extensions: bool = True
    refuse_extensions: bool = False
    send_usage: bool = True
    num_tokens: int = 12
    tokens_per_chunk: int = 1
    accepted_per_step: int = 1
    plan: list[str] = field(default_factory=list)
    """Misbehaviour of the next requests, in order; afterwards the server behaves."""
    retry_after: str | None = "0"
    hold: threading.Event = field(default_factory=threading.Event)
    """Answers of the behaviour `slow` wait for it."""
    diverge_at: int | None = None
    """Output position at which speculation gets a token wrong."""
    forgetful: bool = False
    """Answer with speculation as without, but only the second time: an engine that rounds."""
    tie_gap: float = 2.0
    """Gap of the two best log-probabilities at every position."""
    logprob_ids: bool = True
    ignore_drafter: bool = False
    decode_s: dict[str, float] = field(default_factory=lambda: {"none": 1.0, "live": 0.5})
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_in_flight: int = 0
    most_in_flight: int = 0

    def of_kind(self, drafter: str) -> list[dict[str, Any]]:
        """Return the requests that asked for a drafter."""
        return [body for body in self.bodies if body.get("aurora", {}).get("drafter") == drafter]


def token_ids_of(prompt: str, num_tokens: int) -> list[int]:
    digest = hashlib.sha256(prompt.encode()).digest()
    return [97 + digest[index % 32] % 26 for index in range(num_tokens)]


def _application(state: FakeOpenAI) -> fastapi.FastAPI:
    app = fastapi.FastAPI()

    @app.get("/v1/models")
    async def models() -> Any:
        if "no models" in state.plan:
            return PlainTextResponse("nothing here", status_code=404)
        if "wants key" in state.plan:
            return JSONResponse({"error": {"message": "no key"}}, status_code=401)
        return {"object": "list", "data": [{"id": "fake"}]}

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> Any:
        state.bodies.append(body | {"asked": state.name} if state.name else body)
        fault = state.plan.pop(0) if state.plan else ""
        if fault == "429":
            headers = {} if state.retry_after is None else {"Retry-After": state.retry_after}
            return JSONResponse({"error": {"message": "full"}}, status_code=429, headers=headers)
        if fault == "500":
            return JSONResponse({"error": {"message": "out of cheese"}}, status_code=500)
        if fault == "detail":
            return JSONResponse({"detail": "no such route"}, status_code=404)
        if fault == "plain":
            return PlainTextResponse("not a stream")
        if state.refuse_extensions and ("aurora" in body or "return_token_ids" in body):
            return JSONResponse({"error": {"message": "unknown field"}}, status_code=400)
        return StreamingResponse(_stream(state, body, fault), media_type="text/event-stream")

    return app


async def _stream(state: FakeOpenAI, body: dict[str, Any], fault: str) -> AsyncIterator[str]:
    state.num_in_flight += 1
    state.most_in_flight = max(state.most_in_flight, state.num_in_flight)
    try:
        async for chunk in _chunks(state, body, fault):
            yield chunk
    finally:
        state.num_in_flight -= 1


async def _chunks(state: FakeOpenAI, body: dict[str, Any], fault: str) -> AsyncIterator[str]:
    def event(value: object) -> str:
        return f"data: {json.dumps(value)}\n\n"

    prompt = body["messages"][-1]["content"]
    drafter = body.get("aurora", {}).get("drafter", "live")
    num_tokens = min(state.num_tokens, body["max_tokens"])
    tokens = token_ids_of(prompt, num_tokens)
    speculates = state.ignore_drafter or drafter != "none"
    repeats = state.forgetful and body.get("logprobs")
    if state.diverge_at is not None and (speculates or repeats) and state.diverge_at < num_tokens:
        tokens[state.diverge_at] = ord("A")
    while fault == "slow" and not state.hold.is_set():
        await asyncio.sleep(0.005)
    while fault == "together" and state.most_in_flight < 4:
        await asyncio.sleep(0.005)
    yield event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    for first in range(0, num_tokens, state.tokens_per_chunk):
        if first >= 3 and fault == "malformed":
            yield "data: {broken\n\n"
        if first >= 3 and fault == "wrong shape":
            yield event({"choices": [7]})
        if first >= 3 and fault == "error event":
            yield event({"error": {"message": "the engine died", "code": 500}})
        if first >= 3 and fault == "disconnect":
            raise ConnectionResetError("the fake server hangs up")
        if first >= 3 and fault == "early end":
            return
        part = tokens[first : first + state.tokens_per_chunk]
        choice: dict[str, Any] = {"index": 0, "delta": {"content": bytes(part).decode()}}
        if state.extensions and body.get("return_token_ids"):
            choice["token_ids"] = part
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [_entry(state, token) for token in part]}
        yield event({"choices": [choice]})
    yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    last: dict[str, Any] = {"choices": []}
    if state.send_usage:
        last["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": num_tokens}
    if state.extensions:
        last["aurora"] = _statistics(state, drafter, num_tokens, speculates)
    yield event(last)
    yield "data: [DONE]\n\n"


def _entry(state: FakeOpenAI, token: int) -> dict[str, Any]:
    other = ord("A") if token != ord("A") else ord("B")
    ranked = [(token, -0.1), (other, -0.1 - state.tie_gap)]
    if token == ord("A"):  # the repetition of a forgetful server: its usual token comes second
        ranked[1:] = [(usual, -0.1 - state.tie_gap) for usual in range(97, 123)]
    top = [_logprob(state, *one) for one in ranked]
    return {**top[0], "top_logprobs": top}


def _logprob(state: FakeOpenAI, token: int, logprob: float) -> dict[str, Any]:
    entry: dict[str, Any] = {"token": chr(token), "logprob": logprob, "bytes": [token]}
    if state.logprob_ids:
        entry["token_id"] = token
    return entry


def _statistics(
    state: FakeOpenAI, drafter: str, num_tokens: int, speculates: bool
) -> dict[str, Any]:
    per_step = state.accepted_per_step if speculates else 0
    num_steps = max(1, -(-(num_tokens - 1) // (1 + per_step)))
    decode_s = state.decode_s.get(drafter, 1.0)
    return {
        "request_id": "r",
        "num_steps": num_steps,
        "num_speculative_steps": num_steps if speculates else 0,
        "num_drafted": 3 * num_steps if speculates else 0,
        "accepted_per_position": [num_steps * per_step, 0, 0] if speculates else [],
        "acceptance_length": 1.0 + per_step,
        "min_draft_version": 4 if speculates else -1,
        "max_draft_version": 5 if speculates else -1,
        "ttft_s": 0.25,
        "decode_s": decode_s,
        "otps": (num_tokens - 1) / decode_s if num_tokens > 1 else None,
    }


@contextlib.contextmanager
def _running() -> Iterator[FakeOpenAI]:
    state = FakeOpenAI()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)  # or a first request could come before the server listens
    config = uvicorn.Config(
        _application(state), log_level="critical", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    yield state
    state.hold.set()
    server.should_exit = True
    thread.join(timeout=10)


@pytest.fixture(scope="session")
def _running_server() -> Iterator[FakeOpenAI]:
    with _running() as state:
        yield state


def _reset(state: FakeOpenAI) -> FakeOpenAI:
    fresh = FakeOpenAI(url=state.url)
    for name, value in vars(fresh).items():
        setattr(state, name, value)
    return state


@pytest.fixture
def server(_running_server: FakeOpenAI) -> Iterator[FakeOpenAI]:
    """The fake server, well-behaved until the test says otherwise."""
    yield _reset(_running_server)
    _running_server.hold.set()


@pytest.fixture(scope="session")
def _running_second_server() -> Iterator[FakeOpenAI]:
    with _running() as state:
        yield state


@pytest.fixture
def second_server(server: FakeOpenAI, _running_second_server: FakeOpenAI) -> FakeOpenAI:
    """Another one; both note what they are asked in one list, with who was asked."""
    state = _reset(_running_second_server)
    server.name, state.name = "first", "second"
    state.bodies = server.bodies
    return state
