"""A benchmark as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table

from aurora_core.bench.figures import BatchFigures, ConfigFigures
from aurora_core.bench.measure import BenchReport
from aurora_core.traffic.replay import number


def render_report(report: BenchReport) -> Iterator[Table | str]:
    """Yield the table of a benchmark, and after it what a reader has to know about it."""
    table = _empty_table(report, "config")
    for figures in report.batches:
        _add_row(table, figures, "none", figures.none)
        _add_row(table, figures, "speculative", figures.speculative)
    yield table
    for figures in report.batches:
        yield _speed(figures)
    yield from _remarks(report)


def render_comparison(reports: Mapping[str, BenchReport]) -> Iterator[Table | str]:
    """Yield the same for several drafters that were measured together, by name."""
    first = next(iter(reports.values()))
    table = _empty_table(first, "drafter")
    for index, plain in enumerate(first.batches):
        _add_row(table, plain, "none", plain.none)
        for name, report in reports.items():
            figures = report.batches[index]
            _add_row(table, figures, name, figures.speculative)
    yield table
    for name, report in reports.items():
        for line in (*map(_speed, report.batches), *_remarks(report)):
            yield f"{name}: {line}"


def _empty_table(report: BenchReport, heading: str) -> Table:
    # Fits into 80 columns.
    table = Table(
        title=f"{report.model} at {report.url}",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("BS", justify="right")
    table.add_column(heading)
    for title in ("OTPS\nmean", "\nP50", "\nP05", "\nP95", "\nspeed-up", "acceptance\nlength"):
        table.add_column(title, justify="right", min_width=5)
    for title in ("TTFT ms\nP50", "\nP95"):
        table.add_column(title, justify="right", min_width=5)
    return table


def _add_row(table: Table, figures: BatchFigures, name: str, config: ConfigFigures) -> None:
    speedup, length = "", ""
    if config is figures.speculative:
        length = number(config.acceptance_length, 2)
        speedup = f"{figures.speedup.ratio:.2f}x" if figures.speedup else "-"
    otps = config.otps
    table.add_row(
        str(figures.batch_size),
        name,
        number(otps.mean),
        number(otps.p50),
        number(otps.p05),
        number(otps.p95),
        speedup,
        length,
        _milliseconds(config.ttft_s.p50),
        _milliseconds(config.ttft_s.p95),
    )


def _speed(figures: BatchFigures) -> str:
    line = f"batch size {figures.batch_size}: "
    if (speedup := figures.speedup) is not None:
        line += (
            f"speed-up {speedup.ratio:.2f}x, P05 to P95 of {figures.num_pairs} pairs of runs "
            f"{speedup.low:.2f} to {speedup.high:.2f}; "
        )
    none, speculative = figures.none.throughput.p50, figures.speculative.throughput.p50
    return f"{line}all requests together {number(none)} -> {number(speculative)} tokens/s"


def _remarks(report: BenchReport) -> Iterator[str]:
    checked = sum(figures.lossless.checked for figures in report.batches)
    mismatches = sum(figures.lossless.mismatches for figures in report.batches)
    near_ties = sum(figures.lossless.near_ties for figures in report.batches)
    yield (
        f"outputs compared: {checked}, different: {mismatches}, parted at a near-tie: {near_ties}"
    )
    for figures in report.batches:
        prefix = f"batch size {figures.batch_size}:"
        if figures.failed_pairs:
            yield f"{prefix} {figures.failed_pairs} pairs of runs failed and are left out"
        if waiting := figures.none.retries + figures.speculative.retries:
            yield f"{prefix} the server had no room {waiting} times, so batches were smaller"
        if figures.speculative.acceptance_length == 1.0:
            yield f"{prefix} no draft token was accepted; is a drafter live?"


def _milliseconds(seconds: float | None) -> str:
    return number(None if seconds is None else seconds * 1000, 0)
