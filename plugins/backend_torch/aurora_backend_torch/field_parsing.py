"""Parsers of request fields that have several shapes, each with one plain sentence on refusal.

A pydantic union would answer a wrong shape with one error per alternative.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
MAX_PROMPTS = 256

PromptInput = str | list[int]
"""One prompt: text to tokenise, or token ids."""


def _refuse(kind: str, message: str) -> PydanticCustomError:
    return PydanticCustomError(kind, "{message}", {"message": message})


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _parse_prompts(value: Any) -> list[PromptInput]:
    if isinstance(value, str) or _is_token_ids(value):
        return [value]
    if not isinstance(value, list) or not all(
        isinstance(item, str) or _is_token_ids(item) for item in value
    ):
        raise _refuse(
            "prompt_shape",
            "must be a string, a list of strings, a list of token ids or a list of such lists",
        )
    if not value:
        raise _refuse("prompt_shape", "must not be empty")
    if len(value) > MAX_PROMPTS:
        raise _refuse("prompt_shape", f"holds more than {MAX_PROMPTS} prompts")
    return value


def _parse_stop(value: Any) -> list[str]:
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise _refuse("stop_shape", "must be a string or a list of strings")
    if len(stops) > MAX_STOP_STRINGS:
        raise _refuse("stop_shape", f"holds more than {MAX_STOP_STRINGS} strings")
    if not all(0 < len(stop) <= MAX_STOP_LENGTH for stop in stops):
        raise _refuse("stop_shape", f"strings must have 1 to {MAX_STOP_LENGTH} characters")
    return stops


def _parse_content(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _refuse("content_shape", "must be a string or a list of text parts")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise _refuse(
                "content_shape",
                f"only parts of type 'text' are supported, not {kind!r}",
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _parse_drafter(value: Any) -> str | int:
    if value in ("live", "none") or (type(value) is int and value >= 1):
        return value  # type: ignore[no-any-return]
    raise _refuse("drafter_shape", "must be 'live', 'none' or the number of a resident version")


Prompts = Annotated[
    list[PromptInput],
    PlainValidator(
        _parse_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
    ),
]
StopStrings = Annotated[
    list[str], PlainValidator(_parse_stop, json_schema_input_type=str | list[str] | None)
]
TextContent = Annotated[
    str, PlainValidator(_parse_content, json_schema_input_type=str | list[dict[str, str]] | None)
]
DrafterChoice = Annotated[
    str | int, PlainValidator(_parse_drafter, json_schema_input_type=str | int)
]
