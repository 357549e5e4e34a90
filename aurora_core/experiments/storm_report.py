"""What a storm of swaps is measured by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from aurora_core.report.document import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class StormPlan:
    """How long, how often, how many."""

    phase_s: float = 60.0
    num_storms: int = 5
    """Storms; as many calm phases lie before them."""
    swap_every_s: float = 5.0
    concurrency: int = 8
    max_tokens: int = 96
    num_prompts: int = 24
    """Different prompts; they are asked again and again."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """All calm phases together, or all storms. Milliseconds between two chunks of an answer."""

    num_gaps: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StormReport:
    """What came of it."""

    plan: StormPlan
    versions: tuple[int, ...]
    num_requests: int
    num_failed: int
    failures: tuple[str, ...]
    num_different: int
    """Answers that are not those without speculation, token by token."""
    num_swaps: int
    num_failed_swaps: int
    stall_ms_p99: float | None
    """Time for which decoding stood still, as the engine reported."""
    stall_ms_max: float | None
    acceptance_length: float | None
    """Of all requests: 1.0 would say that no drafter took part."""
    calm: PhaseFigures
    storm: PhaseFigures

    @property
    def p99_ratio(self) -> float | None:
        """P99 of the gaps in storms / P99 of those in calm phases."""
        if self.storm.p99_ms is None or not self.calm.p99_ms:
            return None
        return self.storm.p99_ms / self.calm.p99_ms


def gap_figures(
    arrivals: Sequence[Sequence[float]], phases: Sequence[tuple[float, float]]
) -> PhaseFigures:
    """Return the gaps between chunks of which the later one arrived within some phases.

    Args:
        arrivals: of each answer, in seconds of one clock.
        phases: (begin, end), on the same clock.
    """
    gaps = [
        (later - earlier) * 1000
        for answer in arrivals
        for earlier, later in pairwise(answer)
        if any(begin <= later < end for begin, end in phases)
    ]
    return PhaseFigures(
        num_gaps=len(gaps),
        p50_ms=percentile(gaps, 50),
        p95_ms=percentile(gaps, 95),
        p99_ms=percentile(gaps, 99),
        max_ms=max(gaps, default=None),
    )


def as_markdown(report: StormReport) -> str:
    """Return the report as a table and two lines of text."""

    def cells(figures: PhaseFigures) -> str:
        values = (figures.p50_ms, figures.p95_ms, figures.p99_ms, figures.max_ms)
        texts = ["-" if value is None else f"{value:.1f}" for value in values]
        return " | ".join([str(figures.num_gaps), *texts])

    ratio = report.p99_ratio
    stall = "-" if report.stall_ms_p99 is None else f"{report.stall_ms_p99:.1f} ms"
    length = "-" if report.acceptance_length is None else f"{report.acceptance_length:.2f}"
    return "\n".join(
        [
            "| phases | gaps | P50 ms | P95 ms | P99 ms | longest ms |",
            "| --- | --- | --- | --- | --- | --- |",
            f"| calm | {cells(report.calm)} |",
            f"| storm | {cells(report.storm)} |",
            "",
            f"P99 in storms / P99 in calm: {'-' if ratio is None else f'{ratio:.2f}'}. "
            f"{report.num_swaps} swaps, {report.num_failed_swaps} failed; decoding stood still for "
            f"{stall} (P99).",
            f"{report.num_requests} requests, {report.num_failed} failed, "
            f"{report.num_different} answers different; acceptance length {length}.",
        ]
    )
