"""What MLflow shows of a drafter version: figures, description, parameters.

    holdout/*  replay of held-out traces
    train/*    training batches just before it was published
    live/*     requests that it served

Only what says something about the drafter itself. What the learner was doing at the time (rates,
memory, rewards of the versions before) is a curve of the run, at the same step.
"""

from __future__ import annotations

import math
import time

from aurora_core.acceptance import holdout_acceptance_length, per_position, sum_per_position
from aurora_core.records import DraftVersion, Holdout, ServingStats

_TRAINING_FIGURES = ("train/loss", "train/acceptance_length")


def figures(draft: DraftVersion) -> dict[str, float]:
    """Return the finite figures of a version; MLflow's charts of versions come in this order."""
    values = {} if draft.holdout is None else _holdout_figures(draft.holdout)
    held_out = [key for key in draft.metrics if key.startswith("holdout/")]
    for key in (*held_out, *(key for key in _TRAINING_FIGURES if key in draft.metrics)):
        values.setdefault(key, draft.metrics[key])
    return {key: float(value) for key, value in values.items() if math.isfinite(value)}


def live_figures(stats: ServingStats) -> dict[str, float]:
    """Return what a version did on live requests, as metrics."""
    values = {
        "live/num_requests": float(stats.num_requests),
        "live/acceptance_length": stats.acceptance_length,
        "live/otps": stats.otps,
    }
    for position, rate in enumerate(stats.acceptance_per_position, start=1):
        values[f"live/acceptance_at_{position}"] = rate
    for one in stats.by_batch_size:
        values[f"live/otps_at_batch_size_{one.batch_size}"] = one.otps.mean
    return values


def describe(draft: DraftVersion) -> str:
    """Return what the list of versions says about one; it shows the first words only.

    The registry counts over everything that was ever registered, so its number of a version may be
    another than Aurora's.
    """
    length = figures(draft).get("holdout/acceptance_length")
    scored = "Not scored" if length is None else f"Acceptance length {length:.2f} held out"
    return (
        f"{scored}; draft version {draft.version}, {draft.speculator}, "
        f"{draft.global_step} optimizer steps"
    )


def parameters(draft: DraftVersion) -> dict[str, str]:
    """Return what MLflow puts beside each other where versions are compared."""
    return {
        "draft_version": str(draft.version),
        "parent": "" if draft.parent is None else str(draft.parent),
        "speculator": draft.speculator,
        "objective": draft.objective,
        "global_step": str(draft.global_step),
        "num_tokens_trained": str(draft.num_tokens_trained),
        "data_window": "" if draft.data_window is None else _span(*draft.data_window),
        "target_fingerprint": draft.target_fingerprint,
    }


def _holdout_figures(holdout: Holdout) -> dict[str, float]:
    num_anchors, accepted = holdout.num_anchors, holdout.candidate_accepted
    if not any(num_anchors):
        return {}
    values = {"holdout/acceptance_length": holdout_acceptance_length(num_anchors, accepted)}
    rates = per_position(sum_per_position(accepted), sum(num_anchors))
    for position, rate in enumerate(rates, start=1):
        values[f"holdout/acceptance_at_{position}"] = rate
    if holdout.live_accepted:
        values["holdout/live_acceptance_length"] = holdout_acceptance_length(
            num_anchors, holdout.live_accepted
        )
    return values


def _span(oldest: float, newest: float) -> str:
    """Return two times as one readable span, in UTC."""
    return " to ".join(
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)) for when in (oldest, newest)
    )
