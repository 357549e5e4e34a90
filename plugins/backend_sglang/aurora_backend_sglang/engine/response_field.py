"""What Aurora adds to a response of SGLang: the `aurora` field, and token ids in a stream.

SGLang has token ids for streamed chats only at their end, in a section of its own. A client that
asked for `return_token_ids`, which SGLang refuses there, gets them from it as one more chunk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from aurora_core.engine_process.asgi import Rewriting

Take = Callable[[str], Mapping[str, Any] | None]

_EXTENSION = "sglext"
"""SGLang's section."""


class ResponseField(Rewriting):
    """Rewrites one response."""

    def __init__(self, take: Take, *, chat_ids: bool = False, with_usage: bool = True) -> None:
        """
        Args:
            take: gives the statistics of a finished request by its id.
            chat_ids: SGLang's section was asked for by Aurora, for a client that wants token ids.
            with_usage: the stream ends with a chunk of usage, which the field goes into; without,
                it goes into the chunk with the finish reason.
        """
        self._take, self._chat_ids, self._with_usage = take, chat_ids, with_usage

    def add_to_event(self, event: bytes) -> bytes:
        """Return a server-sent event with what belongs into it."""
        if not event.startswith(b"data: {"):
            return event
        try:
            chunk = json.loads(event[6:])
        except ValueError:
            return event
        changed = self._chat_ids and self._add_token_ids(chunk)
        if self._is_last(chunk):
            field = self._take(str(chunk.get("id")))
            if field is not None:
                chunk["aurora"], changed = field, True
        if not changed:
            return event
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    def add_to_body(self, body: bytes) -> bytes:
        """Return a whole response with the field; anything but a completion as it is."""
        try:
            answer = json.loads(body)
        except ValueError:
            return body
        field = self._take(str(answer.get("id"))) if isinstance(answer, dict) else None
        if field is None:
            return body
        return json.dumps({**answer, "aurora": field}, separators=(",", ":")).encode()

    def _is_last(self, chunk: Mapping[str, Any]) -> bool:
        if self._with_usage:
            return bool(chunk.get("usage")) and not chunk.get("choices")
        return any(choice.get("finish_reason") for choice in chunk.get("choices") or ())

    def _add_token_ids(self, chunk: dict[str, Any]) -> bool:
        section = chunk.get(_EXTENSION)
        if not section or not section.get("output_ids"):
            return False
        del chunk[_EXTENSION]
        chunk["choices"] = [
            {"index": index, "delta": {}, "finish_reason": None, "token_ids": token_ids}
            for index, token_ids in enumerate(section["output_ids"])
        ]
        if section.get("input_ids"):
            chunk["prompt_token_ids"] = section["input_ids"]
        return True
