"""Per-request speculation statistics as they stand in a response's `aurora` field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aurora_core.records import RequestStats


def describe_stats(stats: RequestStats) -> dict[str, Any]:
    """Return the `aurora` field of a response.

    `acceptance_length` is 1 + accepted / steps over all steps of the request, plain ones included;
    `otps` is the output tokens after the first per second of decoding, None without any.
    """
    num_accepted = sum(stats.accepted_per_position)
    num_later = stats.num_output_tokens - 1
    described = {
        "request_id": stats.request_id,
        "num_steps": stats.num_steps,
        "num_speculative_steps": stats.num_speculative_steps,
        "num_drafted": stats.num_drafted,
        "accepted_per_position": list(stats.accepted_per_position),
        "acceptance_length": 1 + num_accepted / stats.num_steps if stats.num_steps else 1.0,
        "min_draft_version": stats.min_draft_version,
        "max_draft_version": stats.max_draft_version,
        "ttft_s": stats.ttft_s,
        "decode_s": stats.decode_s,
        "otps": num_later / stats.decode_s if num_later > 0 and stats.decode_s > 0 else None,
    }
    # A server without lineages says nothing about them.
    return {**described, "lineage": stats.lineage} if stats.lineage else described
