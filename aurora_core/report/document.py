"""The content of report.json, key by key. Its keys are stable: programs read them.

Figures that were not measured are null, never zero.

    acceptance_length.first   over the first 32 requests served by whatever was live (comparisons
                              without speculation left out); 1.0 while there is no drafter
    acceptance_length.last    of the final measurement on held-out prompts; of the last 200 live
                              requests when there was none, see `last_measured_on`
    otps                      of the final measurement at the first batch size: medians over runs
                              of output tokens per second of a request after its first token;
                              `speedup` is their ratio
    requests                  the run's own traffic, as sent; finished requests of any client when
                              it had none. total = finished + failed + unfinished.
                              `engine_finished` counts everything, comparisons and the final
                              measurement included
    lossless                  answers of the run's traffic and of the final measurement, compared
                              with the same request without speculation
    learner                   steps and tokens of the lineage, earlier runs on the same directory
                              included
    swaps.stall_ms_*          time for which the decoding loop stood still, as the engine reported
    swaps.longest_gap_ms_*    longest pause between two chunks of an answer, P99 over the run's own
                              requests that were in flight at a swap, and over all the others
    lineages                  each by itself where there are several, see `report.lineages`; the
                              other figures of drafters and learner are the default lineage's then
    traces                    over both ends of the sink since the run began; at least what the
                              engine reported
    memory                    as the engine reported: the peak of samples once a second
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aurora_core.bench.measure import SpeedupReport
from aurora_core.records import TargetSpec
from aurora_core.report.history import FIRST_WINDOW_REQUESTS, History
from aurora_core.report.lineages import LineageFacts, describe_lineages
from aurora_core.report.packages import python_and_platform
from aurora_core.traffic.lossless import Difference
from aurora_core.wire import to_dict

REPORT_SCHEMA = 1
"""Version of the layout; it grows when a key changes its meaning."""

_KEPT_DIFFERENCES = 20


@dataclass(frozen=True, kw_only=True)
class RequestCounts:
    """Requests as their senders saw them."""

    total: int
    """All that were sent; without own traffic, all that the engine saw the end of."""
    failed: int
    """Without a complete answer."""
    unfinished: int = 0
    """Given up by whoever sent them: the run ended, or the client went away."""


@dataclass(frozen=True, kw_only=True)
class LosslessCounts:
    """Answers compared with the same request without speculation."""

    checked: int = 0
    mismatches: int = 0
    """Different, and not by a near-tie."""
    near_ties: int = 0
    """First difference where the two best tokens are equal within rounding."""
    by_version: Mapping[int, int] = field(default_factory=dict)
    """Comparisons during the traffic, by the newest draft version behind the answer."""
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Everything the report is made of."""

    ended: str
    """finished, interrupted, engine_died or failed."""
    error: str | None
    """The sentence of a run that did not end well."""
    target: TargetSpec
    speculator: str
    history: History
    requests: RequestCounts
    num_engine_finished: int
    num_engine_aborted: int
    lossless: LosslessCounts
    num_failed_swaps: int
    measurements: tuple[SpeedupReport, ...]
    """One per batch size."""
    acceptance_by_domain: Mapping[str, float]
    traces_kept: int
    traces_shed: int
    engine_peak_mib: float
    learner_state: str
    learner_steps: int
    tokens_trained_before: int
    """By earlier runs on the same directory."""
    learner_restarts: int
    learner_peak_mib: float
    live_version: int | None
    wall_s: float
    seed: int
    run_dir: str
    tracking_uri: str | None
    plugins: Mapping[str, str]
    packages: Mapping[str, str]
    settings: Mapping[str, Any]
    """The resolved configuration without secrets."""
    settings_digest: str
    num_engine_changes: int = 0
    """Times the engine changed drafters by itself; those are in the history too."""
    gaps_ms_at_swaps: tuple[float, ...] = ()
    """Longest pause of each own request that was in flight at a swap."""
    gaps_ms_elsewhere: tuple[float, ...] = ()
    """The same for all other requests."""
    lineages: tuple[LineageFacts, ...] = ()
    """All lineages, the default one first; none where it is the only one."""
    num_dropped_records: int = 0
    """Lines of requests.jsonl and verdicts.jsonl that the disk did not take."""


def make_report(facts: RunFacts) -> dict[str, Any]:
    """Return the content of report.json."""
    history = facts.history
    measured = facts.measurements[0] if facts.measurements else None
    last = measured.acceptance_length if measured else history.last_acceptance_length
    # Nothing is measured when an engine changes by itself, and nothing stands still.
    stalls = [event.receipt.stall_ms for event in history.swaps if event.receipt.stall_ms > 0]
    newest = history.published[-1] if history.published else None
    return {
        "schema": REPORT_SCHEMA,
        "ended": facts.ended,
        "error": facts.error,
        "requests": {
            "total": facts.requests.total,
            "finished": facts.requests.total - facts.requests.failed - facts.requests.unfinished,
            "failed": facts.requests.failed,
            "unfinished": facts.requests.unfinished,
            "engine_finished": facts.num_engine_finished,
            "engine_aborted": facts.num_engine_aborted,
        },
        "lossless": {
            "checked": facts.lossless.checked,
            "mismatches": facts.lossless.mismatches,
            "near_ties": facts.lossless.near_ties,
            "by_version": {str(v): n for v, n in facts.lossless.by_version.items()},
            "differences": [to_dict(one) for one in facts.lossless.differences[:_KEPT_DIFFERENCES]],
        },
        "swaps": {
            "count": history.num_swaps - facts.num_engine_changes,
            "failed": facts.num_failed_swaps,
            "by_engine": facts.num_engine_changes,
            "stall_ms_p99": percentile(stalls, 99),
            "stall_ms_max": max(stalls, default=None),
            "longest_gap_ms_p99": percentile(facts.gaps_ms_at_swaps, 99),
            "longest_gap_ms_p99_elsewhere": percentile(facts.gaps_ms_elsewhere, 99),
            "events": [
                {
                    "num_requests": event.num_requests,
                    "version": event.version,
                    "previous": event.previous,
                    "stall_ms": event.receipt.stall_ms,
                    "load_ms": event.receipt.load_ms,
                }
                for event in history.swaps
            ],
        },
        "verdicts": dict(history.verdict_counts),
        "acceptance_length": {
            "first": history.first_acceptance_length,
            "first_window_requests": min(FIRST_WINDOW_REQUESTS, len(history.first_requests)),
            "last": last,
            "last_measured_on": _last_measured_on(measured, last),
            "per_position": list(history.last_acceptance_per_position),
            "by_domain": dict(facts.acceptance_by_domain),
            "published": {str(draft.version): finite(draft.metrics) for draft in history.published},
        },
        "otps": {
            "none": measured.otps_none if measured else None,
            "speculative": measured.otps_speculative if measured else None,
            "speedup": measured.speedup if measured else None,
            "batch_size": measured.batch_size if measured else None,
            "num_prompts": measured.num_prompts if measured else None,
            "measurements": [
                {
                    "batch_size": item.batch_size,
                    "none": item.otps_none,
                    "speculative": item.otps_speculative,
                    "speedup": item.speedup,
                    "speedup_low": item.speedup_low,
                    "speedup_high": item.speedup_high,
                    "acceptance_length": item.acceptance_length,
                    "without": to_dict(item.none),
                    "with": to_dict(item.speculative),
                }
                for item in facts.measurements
            ],
        },
        "lineages": describe_lineages(facts.lineages),
        "traces": {"kept": facts.traces_kept, "shed": facts.traces_shed},
        "records": {"dropped": facts.num_dropped_records},
        "learner": {
            "state": facts.learner_state,
            "steps": facts.learner_steps,
            "tokens_trained": _tokens_trained(facts),
            "restarts": facts.learner_restarts,
            "metrics": finite(history.learner_metrics),
        },
        "memory": {"engine_mib": facts.engine_peak_mib, "learner_mib": facts.learner_peak_mib},
        "drafter": {
            "speculator": facts.speculator,
            "live_version": facts.live_version,
            "newest_version": newest.version if newest else None,
            "published": len(history.published),
        },
        "target": {
            "name": facts.target.name,
            "architecture": facts.target.architecture,
            "fingerprint": facts.target.fingerprint,
        },
        "wall_s": facts.wall_s,
        "seed": facts.seed,
        "run_dir": facts.run_dir,
        "tracking_uri": facts.tracking_uri,
        "settings": dict(facts.settings),
        "settings_digest": facts.settings_digest,
        "versions": {
            "plugins": dict(facts.plugins),
            "packages": dict(facts.packages),
            **python_and_platform(),
        },
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the smallest value that `percent` % of the values do not exceed; None without any."""
    if not values:
        return None
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(rank, 1) - 1]


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return metrics with what JSON cannot say, NaN and infinity, as null."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _last_measured_on(measured: SpeedupReport | None, last: float | None) -> str | None:
    if measured is not None:
        return "held-out prompts"
    return None if last is None else "live traffic"


def _tokens_trained(facts: RunFacts) -> int:
    """Return the learner's own count, or that of the newest version if it reported none."""
    reported = facts.history.learner_metrics.get("train/num_tokens", 0.0)
    published = [draft.num_tokens_trained for draft in facts.history.published]
    counts = [facts.tokens_trained_before, *published]
    return max([*counts, int(reported)] if math.isfinite(reported) else counts)
