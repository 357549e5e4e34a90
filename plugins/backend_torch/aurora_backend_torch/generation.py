"""What the HTTP side and the engine core exchange: a request in, verification steps out.

This module imports without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from aurora_core.records import RequestStats, Sampling


class QueueFull(Exception):
    """No room is left for another waiting request; the caller should try again later."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue is full; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One sequence to generate, validated and tokenised."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    sampling: Sampling
    stop_token_ids: frozenset[int]
    """Tokens that end the request; the one met is the last token of the output."""
    num_logprobs: int | None
    """None: none; n >= 0: the chosen token's plus those of the n most likely tokens."""
    drafter: Literal["live", "none"] | int
    """A resident draft version, whichever is live, or no speculation."""
    record: bool
    """Whether a trace may be written."""
    request_key: str
    """Hash of the prompt."""
    tenant: str
    route: str
    arrived: float
    """Unix seconds."""
    shadow: int | None = None
    """A resident draft version that drafts beside, unused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Log-probabilities of the target at one output position."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability) of the most likely tokens, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What one verification step added to one request."""

    token_ids: list[int]
    """New tokens, in order; may be several, may be empty in a last output."""
    logprobs: list[TokenLogprob] | None
    """Aligned with `token_ids`; None if not asked for."""
    finish_reason: Literal["stop", "length", "abort"] | None
    """Set in the last output of a request, and only there."""
    stats: RequestStats | None
    """Set with the last output."""
