"""The figures of the streams as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aurora_core.confidence import Interval
from aurora_core.experiments.comparison import TimeBelow
from aurora_core.experiments.summary import ArmSummary, StreamSummary, median_recovery

_DASH = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text."""

    caption: str = ""
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def as_markdown(summaries: Sequence[StreamSummary]) -> str:
    """Return one section for each stream; empty without any."""
    return "".join(f"{line}\n" for summary in summaries for line in _section(summary))


def tables(summary: StreamSummary) -> list[Table]:
    """Return the tables of a stream."""
    found = [_speeds(summary), _losses(summary)]
    if summary.boundaries:
        found.append(_by_domain(summary))
    return found


def _section(summary: StreamSummary) -> Iterable[str]:
    yield f"## {summary.stream.capitalize()} stream"
    for table in tables(summary):
        yield ""
        if table.caption:
            yield from (table.caption, "")
        yield f"| {' | '.join(table.head)} |"
        yield f"|{' --- |' * len(table.head)}"
        for row in table.rows:
            yield f"| {' | '.join(row)} |"
    yield ""
    if summary.missing:
        yield from (f"Not run: {', '.join(summary.missing)}.", "")


def _speeds(summary: StreamSummary) -> Table:
    last = f"last {summary.window}"
    return Table(
        head=(
            "arm",
            "seeds",
            "acceptance length",
            last,
            "OTPS",
            "references",
            "speed-up",
            f"{last}: OTPS / static",
            "each by its references",
        ),
        rows=[
            (
                arm.label,
                ", ".join(map(str, arm.seeds)),
                _interval(arm.whole.length),
                _interval(arm.last.length),
                _interval(arm.whole.otps, 1),
                _number(arm.reference_otps, 1),
                _number(arm.speedup),
                _interval(arm.last_against_static),
                _number(arm.last_speedup_against_static),
            )
            for arm in summary.arms
        ],
    )


def _losses(summary: StreamSummary) -> Table:
    return Table(
        head=(
            "arm",
            f"windows of {summary.window} below static, surely below",
            "requests below",
            "seconds below",
            "worst window",
            "where drafted: below, surely",
            "worst",
            "requests to 90 %",
            "seconds",
            "never",
            "swaps, of them back",
            "switched off",
            "drift",
            "failed",
            "outputs different",
        ),
        rows=[_loss_row(arm) for arm in summary.arms],
    )


def _loss_row(arm: ArmSummary) -> tuple[str, ...]:
    below, outputs = arm.below_static, arm.outputs
    num_requests, seconds, never = median_recovery(arm)
    return (
        arm.label,
        _windows(below),
        str(below.requests_below) if below else _DASH,
        _number(below.seconds_below, 0) if below else _DASH,
        _worst(below),
        _windows(arm.drafted_below_static),
        _worst(arm.drafted_below_static),
        _number(num_requests, 0),
        _number(seconds, 0),
        str(never) if arm.recoveries else _DASH,
        f"{arm.num_swaps}, {arm.num_rolled_back}",
        str(arm.num_switched_off),
        str(arm.num_drifts),
        f"{arm.num_failed} of {arm.num_requests}",
        f"{len(outputs.different)} of {outputs.num_compared}" if outputs else _DASH,
    )


def _windows(below: TimeBelow | None) -> str:
    if below is None:
        return _DASH
    return f"{below.num_below}, {below.num_surely_below} of {below.num_windows}"


def _worst(below: TimeBelow | None) -> str:
    worst = below.worst if below else None
    return f"{_interval(worst.length, signed=True)} at {worst.first}" if worst else _DASH


def _by_domain(summary: StreamSummary) -> Table:
    """Return the plateaus: what each arm accepted in the second half of each later domain."""
    domains = [domain for _, domain in summary.boundaries[1:]]
    rows = []
    for arm in summary.arms:
        cells = [arm.label]
        for domain in domains:
            found = [one for one in arm.recoveries if one.domain == domain]
            plateau = sum(one.plateau for one in found) / len(found) if found else None
            requests = "/".join(
                _DASH if one.num_requests is None else str(one.num_requests) for one in found
            )
            cells.append(f"{_number(plateau)} ({requests})" if found else _DASH)
        rows.append(cells)
    return Table(
        caption="Acceptance length over the second half of each domain, and in brackets the "
        "requests until 90 % of it, for each seed:",
        head=("arm", *domains),
        rows=rows,
    )


def _number(value: float | None, digits: int = 2) -> str:
    return _DASH if value is None else f"{value:.{digits}f}"


def _interval(value: Interval | None, digits: int = 2, *, signed: bool = False) -> str:
    if value is None:
        return _DASH
    sign = "+" if signed else ""
    estimate, lower, upper = (f"{one:{sign}.{digits}f}" for one in value)
    return f"{estimate} [{lower}, {upper}]"
