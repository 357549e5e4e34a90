"""One answer of a server, put together from the chunks of its stream.

Times are taken where the chunks arrive. Against a server that reports its own (`aurora` in the last
chunk) those are used for the figures, because they hold no network and no waiting in this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from aurora_core import wire
from aurora_core.records import NO_DRAFTER


class RequestFailed(Exception):
    """A request that got no complete answer."""

    def __init__(self, kind: str, detail: str) -> None:
        """Keep both parts.

        Args:
            kind: one or two words by which failures are counted, for example `timeout`.
            detail: what happened.
        """
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationStats:
    """What an engine of Aurora says about one request it served."""

    num_steps: int
    num_drafted: int
    accepted_per_position: tuple[int, ...] = ()
    acceptance_length: float
    request_id: str = ""
    num_speculative_steps: int = 0
    min_draft_version: int = NO_DRAFTER
    max_draft_version: int = NO_DRAFTER
    ttft_s: float | None = None
    decode_s: float | None = None
    otps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one output position."""

    token_id: int | None
    """None when the server names tokens by their text only."""
    logprob: float
    top: tuple[tuple[int | None, float], ...]
    """(token id, log-probability) of the most likely tokens, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A complete answer, with its times in seconds."""

    text: str
    token_ids: tuple[int, ...] | None
    """None when the server does not report them."""
    prompt_token_ids: tuple[int, ...] | None
    finish_reason: str
    num_prompt_tokens: int
    num_output_tokens: int
    """As the server counted; the number of chunks when it sends no usage."""
    ttft_s: float | None
    """From sending to the first token; None for an empty answer."""
    decode_s: float | None
    """From the first token to the last."""
    otps: float | None
    """Tokens after the first one per second of `decode_s`; None below two tokens."""
    latency_s: float
    """From sending to the end of the stream, measured here."""
    longest_gap_s: float | None
    """Longest pause between two chunks with tokens, measured here."""
    num_retries: int
    speculation: SpeculationStats | None
    """None from servers that are not Aurora's."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    arrivals_s: tuple[float, ...] = ()
    """When each chunk with tokens arrived, in seconds of `time.perf_counter`."""


@dataclass(slots=True)
class StreamedAnswer:
    """Takes in the chunks of one stream, in order."""

    sent: float
    """Clock at which the request was sent; the other times come from the same clock."""
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    speculation: SpeculationStats | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    num_first_tokens: int = 1

    def add(self, chunk: Any, now: float) -> None:
        """Take in one parsed chunk that arrived at `now`.

        Raises:
            RequestFailed: the chunk reports an error or is not one of the OpenAI format.
        """
        try:
            if chunk.get("error"):
                error = chunk["error"]
                message = error.get("message") if isinstance(error, dict) else error
                raise RequestFailed("server error", str(message))
            self._add(chunk, now)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RequestFailed("malformed", f"not a completion chunk: {chunk!r:.120}") from error

    def _add(self, chunk: dict[str, Any], now: float) -> None:
        self.usage = chunk.get("usage") or self.usage
        if chunk.get("aurora") is not None:
            self.speculation = _speculation(chunk["aurora"])
        if chunk.get("prompt_token_ids"):
            self.prompt_token_ids = [int(token) for token in chunk["prompt_token_ids"]]
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            text = str(delta.get("content") or delta.get("reasoning_content") or "")
            token_ids = [int(token) for token in choice.get("token_ids") or ()]
            if text or token_ids:
                if not self.arrivals and token_ids:
                    self.num_first_tokens = len(token_ids)
                self.arrivals.append(now)
                self.text.append(text)
                self.token_ids += token_ids
            for entry in (choice.get("logprobs") or {}).get("content") or ():
                self.logprobs.append(_logprobs(entry))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def complete(self, now: float, *, num_retries: int = 0) -> Completion:
        """Return the answer; call once the stream has ended, at `now`.

        Raises:
            RequestFailed: the stream ended before the answer did.
        """
        if self.finish_reason is None:
            raise RequestFailed(
                "disconnected", f"the stream ended early, after {len(self.arrivals)} chunks"
            )
        if self.finish_reason in ("abort", "error"):
            raise RequestFailed("aborted", f"the server gave up, with {self.finish_reason!r}")
        usage = self.usage or {}
        num_output_tokens = int(
            usage.get("completion_tokens") or len(self.token_ids) or len(self.arrivals)
        )
        ttft_s, decode_s, otps = self._times(num_output_tokens)
        if self.speculation is not None:
            ttft_s = self.speculation.ttft_s if self.speculation.ttft_s is not None else ttft_s
            if self.speculation.decode_s is not None:
                decode_s, otps = self.speculation.decode_s, self.speculation.otps
        gaps = [later - earlier for earlier, later in pairwise(self.arrivals)]
        prompt = self.prompt_token_ids
        return Completion(
            text="".join(self.text),
            token_ids=tuple(self.token_ids) if self.token_ids else None,
            prompt_token_ids=None if prompt is None else tuple(prompt),
            finish_reason=self.finish_reason,
            num_prompt_tokens=int(usage.get("prompt_tokens") or len(prompt or ())),
            num_output_tokens=num_output_tokens,
            ttft_s=ttft_s,
            decode_s=decode_s,
            otps=otps or None,
            latency_s=now - self.sent,
            longest_gap_s=max(gaps, default=None),
            num_retries=num_retries,
            speculation=self.speculation,
            logprobs=tuple(self.logprobs),
            arrivals_s=tuple(self.arrivals),
        )

    def _times(self, num_output_tokens: int) -> tuple[float | None, float | None, float | None]:
        if not self.arrivals:
            return None, None, None
        decode_s = self.arrivals[-1] - self.arrivals[0]
        num_timed = num_output_tokens - self.num_first_tokens
        otps = num_timed / decode_s if decode_s > 0 and num_timed > 0 else None
        return self.arrivals[0] - self.sent, decode_s, otps


def _speculation(plain: Any) -> SpeculationStats | None:
    # Another server may use the same key for something else: that is not an error.
    try:
        return wire.from_dict(SpeculationStats, plain)
    except ValidationError:
        return None


def _logprobs(entry: dict[str, Any]) -> TokenLogprobs:
    return TokenLogprobs(
        token_id=_token_id(entry),
        logprob=float(entry["logprob"]),
        top=tuple(
            (_token_id(top), float(top["logprob"])) for top in entry.get("top_logprobs") or ()
        ),
    )


def _token_id(entry: dict[str, Any]) -> int | None:
    # An extension: the OpenAI format names tokens by their text only.
    token_id = entry.get("token_id")
    return None if token_id is None else int(token_id)
