"""The lineages of a run side by side: the part `lineages` of report.json, one entry by name.

requests                 finished requests of the lineage, comparisons included
acceptance_length, otps  mean over its last live requests (at most 200), each request counted
                         once, with a two-sided 95 % interval of that mean; `count` of them
otps_none                the same speed of its requests without speculation, over the whole run
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aurora_core.bench.measure import SpeedupReport
from aurora_core.confidence import sample_of
from aurora_core.controller.serving_stats import length_of, otps
from aurora_core.report.history import History

_TWO_SIDED_95 = 1.96


@dataclass(frozen=True, kw_only=True)
class LineageFacts:
    """Everything that is reported of one lineage."""

    name: str
    speculator: str
    history: History
    live_version: int | None
    num_failed_swaps: int
    traces_kept: int
    traces_shed: int
    learner_state: str
    learner_steps: int
    learner_restarts: int
    learner_peak_mib: float
    measurements: tuple[SpeedupReport, ...] = ()
    """Of the end of the run, one per batch size."""


def describe_lineages(lineages: Sequence[LineageFacts]) -> dict[str, Any]:
    """Return the figures of each lineage by its name, in order."""
    return {facts.name: _describe(facts) for facts in lineages}


def _describe(facts: LineageFacts) -> dict[str, Any]:
    history = facts.history
    last = list(history.last_requests)
    published = history.published
    plain = [(one.plain_otps_sum, one.plain_otps_count) for one in history.requests.bins]
    plain_count = sum(count for _, count in plain)
    return {
        "speculator": facts.speculator,
        "requests": history.num_requests,
        "acceptance_length": {
            **_mean([length_of(one) for one in last if one.num_steps]),
            "first": history.first_acceptance_length,
            "per_position": list(history.last_acceptance_per_position),
        },
        "otps": _mean([speed for one in last if (speed := otps(one)) is not None]),
        "otps_none": sum(total for total, _ in plain) / plain_count if plain_count else None,
        "measured": [
            {
                "batch_size": one.batch_size,
                "none": one.otps_none,
                "speculative": one.otps_speculative,
                "speedup": one.speedup,
                "speedup_low": one.speedup_low,
                "speedup_high": one.speedup_high,
                "acceptance_length": one.acceptance_length,
            }
            for one in facts.measurements
        ],
        "live_version": facts.live_version,
        "published": len(published),
        "swaps": {"count": history.num_swaps, "failed": facts.num_failed_swaps},
        "verdicts": dict(history.verdict_counts),
        "traces": {"kept": facts.traces_kept, "shed": facts.traces_shed},
        "learner": {
            "state": facts.learner_state,
            "steps": facts.learner_steps,
            "restarts": facts.learner_restarts,
            "memory_mib": facts.learner_peak_mib,
        },
    }


def _mean(values: Sequence[float]) -> dict[str, Any]:
    """Return a mean over requests with its interval; bounds need two of them at least."""
    sample = sample_of(values)
    known, bounded = sample.count > 0, sample.count > 1
    radius = _TWO_SIDED_95 * math.sqrt(sample.variance / sample.count) if bounded else 0.0
    return {
        "mean": sample.mean if known else None,
        "low": sample.mean - radius if bounded else None,
        "high": sample.mean + radius if bounded else None,
        "count": sample.count,
    }
