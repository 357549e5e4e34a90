"""What a request tells the worker about itself, through vLLM's own `extra_args`.

The server's middleware writes these keys into the request's `vllm_xargs`; a client may do so too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from aurora_backend_vllm.engine.recording import RequestRecording
from aurora_backend_vllm.engine.stopping import StopConditions
from aurora_core.records import Sampling

RECORD = "aurora_record"
"""0 leaves no trace."""
DRAFTER = "aurora_drafter"
"""`none` is answered without drafts."""
ARRIVED = "aurora_arrived"
"""Unix seconds."""
TENANT, ROUTE = "aurora_tenant", "aurora_route"
NO_DRAFTS = "none"

_SHAPERS = (
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "structured_outputs",
    "logits_processors",
)
"""Parameters that change the target's distribution in a way that a trace does not tell."""


def begin(
    request_id: str,
    prompt: Sequence[int],
    sampling_params: Any,
    *,
    draft_sampling: str,
    max_model_len: int,
) -> RequestRecording:
    """Return an empty recording of a request that the engine runs for the first time.

    Args:
        request_id: globally unique.
        prompt: its tokens.
        sampling_params: vLLM's `SamplingParams`.
        draft_sampling: vLLM's `draft_sample_method`.
        max_model_len: longest request that the engine serves.
    """
    extra: Mapping[str, Any] = sampling_params.extra_args or {}
    return RequestRecording(
        request_id=request_id,
        prompt=list(prompt),
        sampling=_sampling(sampling_params, draft_sampling),
        stops=StopConditions.of(
            sampling_params, num_prompt_tokens=len(prompt), max_model_len=max_model_len
        ),
        arrived=float(extra.get(ARRIVED) or time.time()),
        tenant=str(extra.get(TENANT, "")),
        route=str(extra.get(ROUTE, "")),
        drafts_wanted=extra.get(DRAFTER) != NO_DRAFTS,
        recorded=bool(int(extra.get(RECORD, 1))) and is_plain(sampling_params),
    )


def is_plain(sampling_params: Any) -> bool:
    """Return whether a trace can tell how the request's tokens were drawn.

    What penalties, biases and grammars do to a distribution is not in a trace, so learning from
    such a request would teach something that the target did not mean.
    """
    if getattr(sampling_params, "repetition_penalty", 1.0) != 1.0:
        return False
    return not any(getattr(sampling_params, name, None) for name in _SHAPERS)


def _sampling(sampling_params: Any, draft_sampling: str) -> Sampling:
    greedy = sampling_params.temperature == 0
    drawn = "point_mass" if draft_sampling == "greedy" else "rejection"
    return Sampling(
        temperature=float(sampling_params.temperature),
        top_p=float(sampling_params.top_p),
        top_k=max(int(sampling_params.top_k), 0),
        seed=sampling_params.seed,
        rule="greedy" if greedy else drawn,  # type: ignore[arg-type] # both are rules
    )
