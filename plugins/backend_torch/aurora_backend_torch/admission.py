"""Checks a request against the target and turns it into sequences for the engine."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aurora_backend_torch.api_errors import ApiError
from aurora_backend_torch.generation import GenerationRequest
from aurora_backend_torch.generation_service import ChoicePlan
from aurora_backend_torch.tokenizer import PromptError
from aurora_core.records import Sampling

if TYPE_CHECKING:
    from aurora_backend_torch.field_parsing import PromptInput
    from aurora_backend_torch.generation_service import GenerationService
    from aurora_backend_torch.openai_protocol import ChatBody, CompletionBody

_LONG_TEXT = 16384
"""Characters above which tokenising leaves the event loop's thread."""
_MAX_LABEL_LENGTH = 128
_RESERVED_TEMPLATE_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Who sent a request, and whether it may be recorded."""

    tenant: str
    route: str
    record: bool


def read_origin(headers: Mapping[str, str], body: CompletionBody | ChatBody) -> Origin:
    """Combine headers and body: the body names tenant and route, either can opt out."""
    labels = {}
    for label, in_body in (("tenant", body.aurora.tenant), ("route", body.aurora.route)):
        header = f"X-Aurora-{label.capitalize()}"
        value = headers.get(header, "") if in_body is None else in_body
        if len(value) > _MAX_LABEL_LENGTH:
            raise ApiError(400, f"{header} is longer than {_MAX_LABEL_LENGTH} characters")
        if not value.isprintable():
            raise ApiError(400, f"{header} holds a character that cannot be printed")
        labels[label] = value
    record = headers.get("X-Aurora-Record", "1")
    if record not in ("0", "1"):
        raise ApiError(400, f"X-Aurora-Record must be 0 or 1, not {record[:20]!r}")
    return Origin(labels["tenant"], labels["route"], body.aurora.record and record == "1")


def check_model(service: GenerationService, model: str | None) -> None:
    """Refuse a request for another model than the one served."""
    if model is not None and model != service.model:
        raise ApiError(
            404,
            f"the model {model!r} is not served here; available: {service.model!r}",
            param="model",
            code="model_not_found",
        )


async def encode_prompts(
    service: GenerationService, prompts: Sequence[PromptInput]
) -> list[list[int]]:
    """Return the token ids of every prompt of a completion request."""
    encoded = []
    for prompt in prompts:
        if isinstance(prompt, str):
            prompt = await _encode(service, prompt)
        elif not all(0 <= token_id < service.engine.target.vocab_size for token_id in prompt):
            raise ApiError(
                400,
                f"prompt: token ids must be in 0..{service.engine.target.vocab_size - 1}",
                param="prompt",
            )
        encoded.append(prompt)
    return encoded


async def _encode(service: GenerationService, text: str) -> list[int]:
    try:
        if len(text) < _LONG_TEXT:
            return service.tokenizer.encode(text, add_special_tokens=True)
        return await asyncio.to_thread(service.tokenizer.encode, text, add_special_tokens=True)
    except PromptError as error:
        raise ApiError(400, f"prompt: {error}", param="prompt") from error


async def encode_messages(service: GenerationService, body: ChatBody) -> list[int]:
    """Return the token ids of a conversation."""
    variables = body.chat_template_kwargs or {}
    reserved = sorted(_RESERVED_TEMPLATE_VARIABLES & variables.keys())
    if reserved:
        raise ApiError(
            400,
            f"chat_template_kwargs.{reserved[0]} is set by the server",
            param="chat_template_kwargs",
        )
    messages = []
    for message in body.messages:
        # Chat templates of open models know `system`, the older name.
        role = "system" if message.role == "developer" else message.role
        entry = {"role": role, "content": message.content}
        if message.name is not None:
            entry["name"] = message.name
        messages.append(entry)
    try:
        return await asyncio.to_thread(service.tokenizer.encode_chat, messages, variables)
    except PromptError as error:
        raise ApiError(400, f"messages: {error}", param="messages") from error


def plan_choices(
    service: GenerationService,
    body: CompletionBody | ChatBody,
    prompts: Sequence[list[int]],
    origin: Origin,
    *,
    arrived: float,
    param: str,
) -> list[ChoicePlan]:
    """Return the sequences a request asks for: `n` of each prompt, prompt by prompt.

    Args:
        param: request field that holds the prompts, for messages.

    Raises:
        ApiError: 400, a prompt does not fit or there are more sequences than the engine holds.
    """
    options = service.options
    capacity = options.max_running_requests + options.max_waiting_requests
    if len(prompts) * body.num_choices > capacity:
        raise ApiError(
            400,
            f"the request asks for {len(prompts) * body.num_choices} sequences at once; "
            f"this server holds at most {capacity}",
            param="n" if body.num_choices > 1 else param,
        )
    for token_id in body.stop_token_ids or []:
        if not 0 <= token_id < service.engine.target.vocab_size:
            raise ApiError(
                400, f"stop_token_ids: {token_id} is not a token id", param="stop_token_ids"
            )
    eos = frozenset() if body.ignore_eos else service.tokenizer.eos_token_ids
    stop_token_ids = eos.union(body.stop_token_ids or [])
    plans = []
    for prompt in prompts:
        max_tokens = _fit(service, prompt, body, param)
        request_key = hashlib.sha256(array("q", prompt).tobytes()).hexdigest()[:16]
        for index in range(body.num_choices):
            request_id = uuid.uuid4().hex
            request = GenerationRequest(
                request_id=request_id,
                prompt_token_ids=prompt,
                max_tokens=max_tokens,
                sampling=_sampling(body, index),
                stop_token_ids=stop_token_ids,
                num_logprobs=body.num_logprobs,
                drafter=_drafter(service, body, request_id),
                shadow=service.routing.choose_shadow(request_id),
                record=origin.record,
                request_key=request_key,
                tenant=origin.tenant,
                route=origin.route,
                arrived=arrived,
            )
            plans.append(
                ChoicePlan(
                    request=request,
                    stops=body.stop,
                    skip_special_tokens=body.skip_special_tokens,
                )
            )
    return plans


def _drafter(
    service: GenerationService, body: CompletionBody | ChatBody, request_id: str
) -> Literal["live", "none"] | int:
    """Return the drafter that a request names, or the one that is drawn for it."""
    if "drafter" in body.aurora.model_fields_set:
        # Parsed as one of these, which the field's type cannot say.
        return body.aurora.drafter  # type: ignore[return-value]
    return service.routing.choose(request_id)


def _fit(
    service: GenerationService, prompt: list[int], body: CompletionBody | ChatBody, param: str
) -> int:
    """Return how many tokens may be generated after a prompt."""
    max_context: int = service.engine.max_context
    if not prompt:
        raise ApiError(400, f"{param}: must not be empty", param=param)
    room = max_context - len(prompt)
    if room < 1:
        raise ApiError(
            400,
            f"{param}: {len(prompt)} tokens leave no room in the context of {max_context} tokens",
            param=param,
            code="context_length_exceeded",
        )
    limit = body.output_limit
    if limit is None:
        return min(room, body.default_output_tokens or room)
    if limit > room:
        raise ApiError(
            400,
            f"max_tokens: {limit} after a prompt of {len(prompt)} tokens is more than the context "
            f"of {max_context} tokens holds; ask for at most {room}",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return limit


def _sampling(body: CompletionBody | ChatBody, index: int) -> Sampling:
    temperature = 1.0 if body.temperature is None else body.temperature
    return Sampling(
        temperature=temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        # Choices of one request differ; equal requests still agree choice by choice.
        seed=None if body.seed is None else (body.seed + index) % 2**63,
        rule="greedy" if temperature == 0 else "point_mass",
    )
