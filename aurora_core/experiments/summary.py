"""All figures of one stream, arm by arm; what tables, plots and summary.json are made of."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aurora_core.confidence import Interval
from aurora_core.experiments.arms import ARMS
from aurora_core.experiments.comparison import (
    Outputs,
    TimeBelow,
    compare_outputs,
    speed_ratio,
    time_below,
)
from aurora_core.experiments.figures import (
    Recovery,
    Window,
    blocks,
    columns,
    curve,
    pooled,
    recoveries,
    summarise,
)
from aurora_core.experiments.results import ArmResult
from aurora_core.experiments.streams import StreamName

BASELINE, STATIC = "none", "static"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """One arm over all its seeds."""

    arm: str
    label: str
    seeds: tuple[int, ...]
    num_requests: int
    num_failed: int
    whole: Window
    """All requests."""
    last: Window
    """The last window, of as many requests as a window of the curve."""
    windows: tuple[Window, ...]
    reference_otps: float | None
    """Mean of the requests without speculation in between; None without any."""
    speedup: float | None
    """OTPS of all requests / that of the references."""
    last_against_static: Interval | None
    """OTPS of the last window / that of the static drafter, pairs of equal prompts."""
    last_speedup_against_static: float | None
    """The same, each divided by its own references: without what the machine did meanwhile."""
    below_static: TimeBelow | None
    drafted_below_static: TimeBelow | None
    """The same over requests that this arm drafted for: its drafters alone, without what it costs
    to know the speed without speculation."""
    recoveries: tuple[Recovery, ...]
    outputs: Outputs | None
    """Compared with the arm without speculation."""
    num_swaps: int
    num_rolled_back: int
    num_switched_off: int
    num_drifts: int
    wall_s: float
    """Of all seeds together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """One stream."""

    stream: StreamName
    window: int
    boundaries: tuple[tuple[int, str], ...]
    """(first place, domain) of each block of an ordered stream."""
    arms: tuple[ArmSummary, ...]
    missing: tuple[str, ...]
    """Arms that were not run."""


def summarise_stream(
    stream: StreamName, results: Mapping[str, Sequence[ArmResult]], *, window: int
) -> StreamSummary:
    """Return the figures of a stream.

    Args:
        stream: its name.
        results: arm -> results, one per seed.
        window: requests of a window.
    """
    known = {name: results[name] for name in ARMS if results.get(name)}
    sent = next(iter(known.values()))[0].requests if known and stream == "ordered" else ()
    boundaries = [(first, sent[first].domain) for first, _ in blocks(sent)]
    return StreamSummary(
        stream=stream,
        window=window,
        boundaries=tuple(boundaries),
        arms=tuple(_summarise(name, known, stream, window) for name in known),
        missing=tuple(name for name in ARMS if name not in known),
    )


def _summarise(
    name: str, results: Mapping[str, Sequence[ArmResult]], stream: StreamName, window: int
) -> ArmSummary:
    ours, static, plain = results[name], results.get(STATIC, ()), results.get(BASELINE, ())
    requests = pooled(ours)
    end = max((one.index for result in ours for one in result.requests), default=-1) + 1
    first = max(end - window, 0)
    events = [event for result in ours for event in result.events]
    whole = summarise(requests, end=end)
    reference = _reference_otps(ours)
    compared = name not in (STATIC, BASELINE) and bool(static)
    ratio = speed_ratio(ours, static, first=first, end=end) if compared else None
    slowness = _ratio(_reference_otps(static), reference) if compared else None
    return ArmSummary(
        arm=name,
        label=ARMS[name].label,
        seeds=tuple(result.seed for result in ours),
        num_requests=sum(len(result.requests) for result in ours),
        num_failed=sum(bool(one.error) for result in ours for one in result.requests),
        whole=whole,
        last=summarise(requests, first=first, end=end),
        windows=tuple(curve(requests, window)),
        reference_otps=reference,
        speedup=_ratio(whole.otps.estimate if whole.otps else None, reference),
        last_against_static=ratio,
        last_speedup_against_static=ratio.estimate * slowness if ratio and slowness else None,
        below_static=time_below(ours, static, size=window) if compared else None,
        drafted_below_static=(
            time_below(ours, static, size=window, drafted_only=True) if compared else None
        ),
        recoveries=tuple(
            one for result in ours if stream == "ordered" for one in recoveries(result)
        ),
        outputs=compare_outputs(ours, plain) if name != BASELINE and plain else None,
        num_swaps=sum(event.kind in ("promote", "roll_back") for event in events),
        num_rolled_back=sum(event.kind == "roll_back" for event in events),
        num_switched_off=sum(event.kind == "disable_speculation" for event in events),
        num_drifts=sum(event.kind == "drift" for event in events),
        wall_s=sum(result.wall_s for result in ours),
    )


def median_recovery(summary: ArmSummary) -> tuple[float | None, float | None, int]:
    """Return (median requests, median seconds, shifts without recovery) over shifts and seeds."""
    came_back = [one for one in summary.recoveries if one.num_requests is not None]
    if not came_back:
        return None, None, len(summary.recoveries)
    return (
        statistics.median(one.num_requests or 0 for one in came_back),
        statistics.median(one.seconds or 0.0 for one in came_back),
        len(summary.recoveries) - len(came_back),
    )


def _reference_otps(results: Sequence[ArmResult]) -> float | None:
    references = columns([one for result in results for one in result.references])
    found = summarise(references).otps
    return found.estimate if found else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
