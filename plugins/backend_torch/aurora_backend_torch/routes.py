"""The OpenAI-compatible routes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from aurora_backend_torch.admission import (
    check_model,
    encode_messages,
    encode_prompts,
    plan_choices,
    read_origin,
)
from aurora_backend_torch.api_errors import ApiError, ErrorBody, crash
from aurora_backend_torch.generation_service import (
    ClientGone,
    Delta,
    Generation,
    GenerationService,
)
from aurora_backend_torch.openai_protocol import ChatBody, CompletionBody
from aurora_backend_torch.response_shapes import ChatShape, CompletionShape, ResponseShape

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left; nobody reads it."""
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody},
    "5XX": {"model": ErrorBody},
}


def openai_routes(service: GenerationService) -> APIRouter:
    """Return the routes below `/v1`."""
    router = APIRouter(prefix="/v1", responses=_ERRORS)
    started = int(time.time())

    @router.post("/completions")
    async def create_completion(body: CompletionBody, request: Request) -> Response:
        """Continue one or several prompts."""
        arrived = _arrive(service, body.model)
        prompts = await encode_prompts(service, body.prompt)
        return await _answer(
            service, body, request, prompts, CompletionShape, arrived=arrived, param="prompt"
        )

    @router.post("/chat/completions")
    async def create_chat_completion(body: ChatBody, request: Request) -> Response:
        """Answer a conversation."""
        arrived = _arrive(service, body.model)
        prompts = [await encode_messages(service, body)]
        return await _answer(
            service, body, request, prompts, ChatShape, arrived=arrived, param="messages"
        )

    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        """List the one model served here."""
        return {"object": "list", "data": [_describe_model(service, started)]}

    @router.get("/models/{model:path}")
    async def retrieve_model(model: str) -> dict[str, Any]:
        """Describe the model served here."""
        check_model(service, model)
        return _describe_model(service, started)

    return router


def _describe_model(service: GenerationService, started: int) -> dict[str, Any]:
    return {
        "id": service.model,
        "object": "model",
        "created": started,
        "owned_by": "aurora",
        "max_model_len": service.engine.max_context,
    }


def _arrive(service: GenerationService, model: str | None) -> float:
    if service.is_stopping:
        raise ApiError(503, "the server is stopping")
    check_model(service, model)
    return time.time()


async def _answer(
    service: GenerationService,
    body: CompletionBody | ChatBody,
    request: Request,
    prompts: Sequence[list[int]],
    shape_class: type[ResponseShape],
    *,
    arrived: float,
    param: str,
) -> Response:
    origin = read_origin(request.headers, body)
    plans = plan_choices(service, body, prompts, origin, arrived=arrived, param=param)
    shape = shape_class(
        response_id=plans[0].request.request_id,
        created=int(arrived),
        model=service.model,
        tokenizer=service.tokenizer,
        prompts=prompts,
        num_choices=body.num_choices,
        with_logprobs=body.num_logprobs is not None,
        with_token_ids=bool(body.return_token_ids),
    )
    generation = Generation(service)
    generation.start(plans)
    if body.stream:
        return EventStream(generation, shape, with_usage=body.include_usage)
    watcher = asyncio.create_task(_watch_for_disconnect(request, generation))
    try:
        return JSONResponse(shape.whole(await _collect(generation)))
    except ClientGone:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)
    finally:
        watcher.cancel()
        generation.close()


async def _watch_for_disconnect(request: Request, generation: Generation) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    generation.put(ClientGone())


async def _collect(generation: Generation) -> list[Delta]:
    """Return everything each choice produced."""
    whole = [
        Delta(index=choice.index, text="", token_ids=[], logprobs=[])
        for choice in generation.choices
    ]
    texts: list[list[str]] = [[] for _ in whole]
    async for delta in generation.deltas():
        entry = whole[delta.index]
        texts[delta.index].append(delta.text)
        entry.token_ids.extend(delta.token_ids)
        entry.logprobs.extend(delta.logprobs)
        entry.finish_reason, entry.stats = delta.finish_reason, delta.stats
    for entry, pieces in zip(whole, texts, strict=True):
        entry.text = "".join(pieces)
    return whole


class EventStream(StreamingResponse):
    """Server-sent events of one generation; frees the engine's slots however it ends."""

    def __init__(self, generation: Generation, shape: ResponseShape, *, with_usage: bool) -> None:
        super().__init__(
            _events(generation, shape, with_usage),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; cancelled when the client goes."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()


async def _events(
    generation: Generation, shape: ResponseShape, with_usage: bool
) -> AsyncIterator[bytes]:
    last: Delta | None = None
    try:
        async for delta in generation.deltas():
            last = delta
            if shape.is_visible(delta):
                yield _event(shape.chunk(delta, with_usage=with_usage))
            else:
                shape.skip(delta)
    except ApiError as error:
        # The status line is gone: the error travels as an event, and the stream has no [DONE].
        yield _event(error.body())
        return
    except Exception:
        logger.exception("a streamed response failed")
        yield _event(crash().body())
        return
    if with_usage and last is not None:
        yield _event(shape.usage_chunk(last))
    yield b"data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"
