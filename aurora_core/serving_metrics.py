"""What finished requests add to the curves of a run in MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from aurora_core.acceptance import (
    acceptance_length,
    acceptance_rate,
    per_position,
    sum_per_position,
)
from aurora_core.controller.evidence import is_live, mean_otps
from aurora_core.records import NO_DRAFTER, RequestStats

WINDOW_REQUESTS = 32
"""Requests behind a point of acceptance and speed; curves of single requests are noise."""


def last_requests(
    before: Sequence[RequestStats], finished: Sequence[RequestStats]
) -> tuple[RequestStats, ...]:
    """Return the requests behind the next point: the last ones, and all that just finished.

    Args:
        before: what this returned the last time; empty at first.
        finished: since then.
    """
    return (*before, *finished)[-max(WINDOW_REQUESTS, len(finished)) :]


def load_metrics(finished: Sequence[RequestStats]) -> dict[str, float]:
    """Return how much just finished."""
    return {
        "serve/num_requests": float(len(finished)),
        "serve/num_output_tokens": float(sum(request.num_output_tokens for request in finished)),
    }


def serving_metrics(
    requests: Sequence[RequestStats],
    *,
    live_version: int = NO_DRAFTER,
    num_positions: int = 0,
) -> dict[str, float]:
    """Return pooled acceptance and mean speed of finished requests.

    Args:
        requests: at least one.
        live_version: version that is live, `NO_DRAFTER` for none. While one is, requests without a
            drafter asked for none: they count for the speed without speculation alone.
        num_positions: draft positions with a rate at least. One at which nothing was drafted has
            rate 0: left out, its curve would show the luckier requests only.
    """
    live = [request for request in requests if is_live(request, live_version)]
    plain = [request for request in requests if request.max_draft_version == NO_DRAFTER]
    metrics: dict[str, float] = {}
    if live:
        metrics |= _acceptance_metrics(live, num_positions)
        metrics["serve/draft_version"] = float(max(request.max_draft_version for request in live))
    for name, some in (("serve/otps", live), ("serve/otps_without_speculation", plain)):
        if speed := mean_otps(some):
            metrics[name] = speed
    return metrics | {
        "serve/ttft_s": fmean(request.ttft_s for request in requests),
        "serve/batch_size": fmean(request.batch_size for request in requests),
    }


def _acceptance_metrics(requests: Sequence[RequestStats], num_positions: int) -> dict[str, float]:
    counts = [request.accepted_per_position for request in requests]
    accepted = sum_per_position([*counts, (0,) * num_positions])
    num_steps = sum(request.num_steps for request in requests)
    num_drafted = sum(request.num_drafted for request in requests)
    metrics = {
        "serve/acceptance_length": acceptance_length(sum(accepted), num_steps),
        "serve/acceptance_rate": acceptance_rate(sum(accepted), num_drafted),
    }
    for position, rate in enumerate(per_position(accepted, num_steps), start=1):
        metrics[f"serve/acceptance_at_{position}"] = rate
    return metrics
