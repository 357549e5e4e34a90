"""Prompts from JSONL files.

One object a line, either `{"prompt": "...", "domain": "..."}` or `{"messages": [{"role": "user",
"content": "..."}, ...]}`; the domain is optional, other keys are ignored, blank lines are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from aurora_core.errors import ConfigError
from aurora_core.traffic.prompts.prompt import Prompt
from aurora_core.wire import first_fault


class _Message(BaseModel):
    role: str
    content: str


class _Line(BaseModel):
    domain: str = ""
    prompt: str | None = Field(None, min_length=1)
    messages: tuple[_Message, ...] = ()

    @model_validator(mode="after")
    def _has_a_question(self) -> Self:
        if self.prompt is None and not self.messages:
            raise ValueError("it has neither a `prompt` nor `messages`")
        return self


def read_prompts(path: Path) -> list[Prompt]:
    """Read all prompts of a file, in order. Prompts without a domain get the file's name.

    Raises:
        ConfigError: the file is missing, empty or not UTF-8, or a line is malformed.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(
            f"the prompts file {str(path)!r} cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the prompts file {str(path)!r} is not UTF-8 text") from error
    prompts = [
        _read_line(line, path, number) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not prompts:
        raise ConfigError(f"the prompts file {str(path)!r} holds no prompts")
    return prompts


def _read_line(text: str, path: Path, number: int) -> Prompt:
    try:
        line = _Line.model_validate_json(text)
    except ValidationError as error:
        where, fault = first_fault(error)
        reason = fault.removeprefix("Value error, ").rstrip(".")
        raise ConfigError(
            f"line {number} of the prompts file {str(path)!r} is not a prompt: "
            f"{where + ': ' if where else ''}{reason}"
        ) from error
    domain = line.domain or path.stem
    if not line.messages:
        assert line.prompt is not None
        return Prompt(domain, line.prompt)
    turns = tuple((message.role, message.content) for message in line.messages)
    asked = [content for role, content in turns if role == "user"]
    return Prompt(domain, asked[-1] if asked else turns[-1][1], turns)
