"""Where vLLM ends a request: the worker is not told, so the scheduler's rules are applied again.

The rules are those of vLLM 0.32 (`vllm/v1/core/sched/utils.py`, `check_stop`), without repetition
detection: what it ends counts as `abort` here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConditions:
    """When a request ends by itself."""

    max_output_tokens: int
    end_token: int | None
    """None when the request ignores it."""
    stop_tokens: Collection[int] = ()

    @classmethod
    def of(
        cls, sampling_params: Any, *, num_prompt_tokens: int, max_model_len: int
    ) -> StopConditions:
        """Read vLLM's `SamplingParams`."""
        room = max_model_len - num_prompt_tokens
        wanted = sampling_params.max_tokens
        return cls(
            max_output_tokens=room if wanted is None else min(wanted, room),
            end_token=sampling_params.eos_token_id,
            stop_tokens=frozenset(sampling_params.stop_token_ids or ()),
        )

    def reason(self, token: int, num_output_tokens: int) -> FinishReason | None:
        """Return why the request ends with this token, the `num_output_tokens`-th; None if not."""
        if token == self.end_token or token in self.stop_tokens:
            return "stop"
        return "length" if num_output_tokens >= self.max_output_tokens else None
