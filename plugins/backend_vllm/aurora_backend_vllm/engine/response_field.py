"""The `aurora` field of a response, made of what vLLM itself reports about the request."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from aurora_core.engine_process.asgi import Rewriting
from aurora_core.records import NO_DRAFTER


class ResponseField(Rewriting):
    """Watches one response and tells what its `aurora` field is. Times are the server's own."""

    def __init__(
        self, live_version: Callable[[], int], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """
        Args:
            live_version: drafter in force, asked at the beginning and with every chunk.
            clock: seconds; started now, when the request arrived.
        """
        self._live_version, self._clock = live_version, clock
        self._versions = {live_version()}
        self._arrived = clock()
        self._first = self._last = 0.0

    def saw_tokens(self) -> None:
        """Take note of a chunk with output tokens."""
        self._last = self._clock()
        self._first = self._first or self._last
        self._versions.add(self._live_version())

    def add_to_event(self, event: bytes) -> bytes:
        """Return a server-sent event, with the field if it is the one that carries the usage."""
        if not event.startswith(b"data: ") or event.startswith(b"data: [DONE]"):
            return event
        try:
            chunk = json.loads(event[6:])
        except ValueError:
            return event
        if any(choice.get("token_ids") or _text(choice) for choice in chunk.get("choices") or ()):
            self.saw_tokens()
        if chunk.get("choices") or not chunk.get("usage"):
            return event
        chunk["aurora"] = self.value(chunk)
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    def add_to_body(self, body: bytes) -> bytes:
        """Return a whole response with the field; anything but a completion as it is."""
        try:
            answer = json.loads(body)
        except ValueError:
            return body
        if not isinstance(answer, dict) or not answer.get("usage"):
            return body
        answer["aurora"] = self.value(answer)
        return json.dumps(answer, separators=(",", ":")).encode()

    def value(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the field for a response with vLLM's `usage` and `metrics`.

        A step without drafts is not among vLLM's speculative steps: it is one output token. The
        first token comes from the prompt's own pass. The versions are those in force meanwhile.
        """
        drafted = (answer.get("metrics") or {}).get("speculative_decoding") or {}
        accepted = [int(count) for count in drafted.get("per_step_accepted") or ()]
        num_drafted_per_step = [int(count) for count in drafted.get("per_step_drafted") or ()]
        steps = [
            (count, taken)
            for count, taken in zip(num_drafted_per_step, accepted, strict=True)
            if count
        ]
        depth = max((count for count, _ in steps), default=0)
        num_accepted = sum(taken for _, taken in steps)
        num_tokens = int(answer["usage"].get("completion_tokens") or 0)
        num_plain = max(num_tokens - 1 - num_accepted - len(steps), 0)
        num_steps = len(steps) + num_plain
        versions = self._versions - {NO_DRAFTER} if steps else set()
        decode_s = max(self._last - self._first, 0.0)
        return {
            "request_id": str(answer.get("id", "")),
            "num_steps": num_steps,
            "num_speculative_steps": len(steps),
            "num_drafted": sum(count for count, _ in steps),
            "accepted_per_position": [
                sum(taken > position for _, taken in steps) for position in range(depth)
            ],
            "acceptance_length": 1 + num_accepted / num_steps if num_steps else 1.0,
            "min_draft_version": min(versions, default=NO_DRAFTER),
            "max_draft_version": max(versions, default=NO_DRAFTER),
            "ttft_s": self._first - self._arrived if self._first else None,
            "decode_s": decode_s if self._first else None,
            "otps": (num_tokens - 1) / decode_s if decode_s > 0 and num_tokens > 1 else None,
        }


def _text(choice: Mapping[str, Any]) -> Any:
    delta = choice.get("delta") or {}
    return delta.get("content") or delta.get("reasoning_content") or choice.get("text")
