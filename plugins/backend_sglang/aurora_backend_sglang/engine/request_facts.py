"""What SGLang says about a request, in Aurora's words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from aurora_backend_sglang.engine.recording import FinishReason
from aurora_core.records import Sampling, VerificationRule


def sampling_of(parameters: Any, rule: VerificationRule) -> Sampling:
    """Return a request's sampling parameters, given SGLang's.

    Args:
        parameters: SGLang's `SamplingParams`.
        rule: how the engine verifies drafts of requests that sample.
    """
    # SGLang turns temperature 0 into a choice among one token.
    greedy = parameters.top_k == 1 or parameters.temperature == 0
    whole = parameters.top_k is None or parameters.top_k <= 0 or parameters.top_k >= 1 << 30
    return Sampling(
        temperature=0.0 if greedy else float(parameters.temperature),
        top_p=float(parameters.top_p),
        top_k=0 if greedy or whole else int(parameters.top_k),
        seed=parameters.sampling_seed,
        rule="greedy" if greedy else rule,
    )


def seconds_since_arrival(request: Any) -> float:
    """Return how long ago the scheduler took the request in."""
    received = getattr(request.time_stats, "scheduler_recv_time", 0.0)
    return max(time.perf_counter() - received, 0.0) if received else 0.0


def finish_reason_of(names: Sequence[str]) -> FinishReason:
    """Return Aurora's word for the class of SGLang's finish reason, given with its bases."""
    if "FINISH_ABORT" in names:
        return "abort"
    return "length" if "FINISH_LENGTH" in names else "stop"
