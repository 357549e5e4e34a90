"""From pairs of runs to figures. Pure arithmetic."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from aurora_core.bench.pairs import Pair, Run
from aurora_core.traffic.distribution import Distribution, acceptance_length, describe
from aurora_core.traffic.lossless import LosslessReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFigures:
    """All runs of one configuration at one batch size."""

    requests: int
    num_output_tokens: int
    otps: Distribution
    """Over requests: output tokens after the first one per second of decoding."""
    throughput: Distribution
    """Over runs: output tokens of the whole batch per second, prompts included."""
    ttft_s: Distribution
    """Over requests: seconds from sending to the first token."""
    acceptance_length: float | None
    retries: int
    """Times the server had no room; such requests were not decoded together with their batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Output tokens per second with speculation over those without, from paired runs."""

    ratio: float
    """Median over runs with speculation / median over runs without; a run counts with the mean
    OTPS of its requests."""
    low: float
    """5th percentile of the ratios of the single pairs."""
    high: float
    """95th percentile of the ratios of the single pairs."""
    otps_none: float
    """The median without speculation."""
    otps_speculative: float
    """The median with speculation."""
    pair_ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """Everything measured at one batch size."""

    batch_size: int
    num_pairs: int
    failed_pairs: int
    none: ConfigFigures
    speculative: ConfigFigures
    speedup: Speedup | None
    """None when the answers were too short to time."""
    lossless: LosslessReport


def summarise_batch(
    batch_size: int, pairs: Sequence[Pair], *, failed_pairs: int, lossless: LosslessReport
) -> BatchFigures:
    """Sum up the pairs of one batch size."""
    return BatchFigures(
        batch_size=batch_size,
        num_pairs=len(pairs),
        failed_pairs=failed_pairs,
        none=_summarise([pair.none for pair in pairs]),
        speculative=_summarise([pair.speculative for pair in pairs]),
        speedup=compute_speedup(pairs),
        lossless=lossless,
    )


def compute_speedup(pairs: Sequence[Pair]) -> Speedup | None:
    """Return the speed-up of some pairs; those too short to time are left out."""
    timed = [
        (pair.none.otps, pair.speculative.otps)
        for pair in pairs
        if pair.none.otps is not None and pair.speculative.otps is not None
    ]
    if not timed:
        return None
    none = statistics.median(without for without, _ in timed)
    speculative = statistics.median(with_drafts for _, with_drafts in timed)
    ratios = tuple(with_drafts / without for without, with_drafts in timed)
    spread = describe(ratios)
    assert spread.p05 is not None and spread.p95 is not None
    return Speedup(
        ratio=speculative / none,
        low=spread.p05,
        high=spread.p95,
        otps_none=none,
        otps_speculative=speculative,
        pair_ratios=ratios,
    )


def _summarise(runs: Sequence[Run]) -> ConfigFigures:
    completions = [one for run in runs for one in run.completions]
    return ConfigFigures(
        requests=len(completions),
        num_output_tokens=sum(one.num_output_tokens for one in completions),
        otps=describe(one.otps for one in completions),
        throughput=describe(run.throughput for run in runs),
        ttft_s=describe(one.ttft_s for one in completions),
        acceptance_length=acceptance_length(one.speculation for one in completions),
        retries=sum(one.num_retries for one in completions),
    )
