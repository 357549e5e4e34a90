"""OpenAI's HTTP API over made-up answers; the face of `FakeBackend` and of fake servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import fastapi
from fastapi.responses import JSONResponse, StreamingResponse

from aurora_core.engine_process.aurora_field import describe_answer
from aurora_core.records import RequestStats

MODEL = "fake-target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished request."""

    token_ids: list[int]
    """Codes of lowercase letters."""
    created: int
    """Unix seconds."""
    stats: RequestStats
    accepted_per_step: tuple[int, ...] = ()
    """Where its server tells them."""

    @property
    def text(self) -> str:
        """The answer as text."""
        return bytes(self.token_ids).decode()


class Answers(Protocol):
    """Whatever turns a prompt into an answer."""

    async def answer(self, body: dict[str, Any], prompt: str) -> Answer:
        """Answer one request; `body` is the request as it came."""


Closing = Callable[[Answer], dict[str, Any]]
"""Gives what a server adds to the end of a response: fields beside `usage`."""


def openai_application(
    backend: Answers, *, model: str = MODEL, closing: Closing | None = None
) -> fastapi.FastAPI:
    """Return the routes of OpenAI's API that Aurora's own clients use.

    Args:
        backend: gives the answers.
        model: name that is served.
        closing: Aurora's own field if not given.
    """
    app = fastapi.FastAPI()
    ending = closing or (lambda answer: {"aurora": describe_answer(answer.stats)})

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": model, "object": "model"}]}

    @app.post("/v1/completions")
    async def completions(body: dict[str, Any]) -> Any:
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            prompt = " ".join(map(str, prompt))
        return await _respond(backend, {"model": model, **body}, prompt, ending, chat=False)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: dict[str, Any]) -> Any:
        messages = body.get("messages")
        prompt = "\n".join(f"{m['role']}: {m['content']}" for m in messages) if messages else None
        return await _respond(backend, {"model": model, **body}, prompt, ending, chat=True)

    return app


async def _respond(
    backend: Answers, body: dict[str, Any], prompt: str | None, closing: Closing, *, chat: bool
) -> Any:
    if not prompt:
        message = "the request has no prompt; send `prompt` or `messages`"
        return JSONResponse({"error": {"message": message}}, status_code=400)
    answer = await backend.answer(body, prompt)
    stats = answer.stats
    name = "chat.completion" if chat else "text_completion"
    envelope: dict[str, Any] = {
        "id": stats.request_id,
        "object": name,
        "created": answer.created,
        "model": body["model"],
    }
    ending = {
        "usage": {
            "prompt_tokens": stats.num_prompt_tokens,
            "completion_tokens": stats.num_output_tokens,
            "total_tokens": stats.num_prompt_tokens + stats.num_output_tokens,
        },
        **closing(answer),
    }
    if body.get("return_token_ids"):
        envelope["prompt_token_ids"] = list(prompt.encode())
    if body.get("stream"):
        chunks = _chunks(envelope, answer, ending, body=body, chat=chat)
        return StreamingResponse(chunks, media_type="text/event-stream")
    choice: dict[str, Any] = {"index": 0, "finish_reason": stats.finish_reason}
    choice |= {"message": _message(answer.text)} if chat else {"text": answer.text}
    if body.get("return_token_ids"):
        choice["token_ids"] = answer.token_ids
    return {**envelope, "choices": [choice], **ending}


def _message(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def _chunks(
    envelope: dict[str, Any],
    answer: Answer,
    ending: dict[str, Any],
    *,
    body: dict[str, Any],
    chat: bool,
) -> AsyncIterator[str]:
    envelope = envelope | {"object": "chat.completion.chunk" if chat else "text_completion"}
    stats, token_ids = answer.stats, answer.token_ids
    for index, token_id in enumerate(token_ids):
        last = index == len(token_ids) - 1
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": stats.finish_reason if last else None,
        }
        choice |= {"delta": _message(chr(token_id))} if chat else {"text": chr(token_id)}
        if body.get("return_token_ids"):
            choice["token_ids"] = [token_id]
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [_logprob(token_id)]}
        yield f"data: {json.dumps({**envelope, 'choices': [choice]})}\n\n"
        await asyncio.sleep(0)  # a client that went away ends the stream here
    yield f"data: {json.dumps({**envelope, 'choices': [], **ending})}\n\n"
    yield "data: [DONE]\n\n"


def _logprob(token_id: int) -> dict[str, Any]:
    """Return what a target says that is quite sure of its token."""
    entry = {"token": chr(token_id), "token_id": token_id, "logprob": -0.01}
    return {**entry, "top_logprobs": [entry]}
