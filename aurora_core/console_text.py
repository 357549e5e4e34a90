"""The words and figures of the console, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aurora_core.records import NO_DRAFTER, UNTRAINED

ACTION_STYLES = {
    "promote": "green",
    "hold": "yellow",
    "roll_back": "red",
    "disable_speculation": "red",
}
"""Colours of verdicts on a terminal."""

_BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII = ".:-=+*#@"


def version_name(version: int) -> str:
    """Return how people read a draft version."""
    names = {NO_DRAFTER: "no drafter", UNTRAINED: "untrained drafter"}
    return names.get(version, f"version {version}")


def sparkline(values: Sequence[float], encoding: str = "utf-8") -> str:
    """Return one character per value, from the smallest to the largest."""
    if not values:
        return ""
    levels = _BLOCKS if encoding.lower().replace("-", "").startswith("utf") else _ASCII
    low, high = min(values), max(values)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[round((value - low) * scale)] for value in values)


def describe_requests(
    num_requests: int,
    wanted: int | None,
    *,
    live_otps: float,
    plain_otps: float,
    length: float | None = None,
    live_version: int | None = None,
) -> str:
    """Return one line on the requests so far and how fast they are.

    Args:
        num_requests: ended so far, failed ones included.
        wanted: the run ends after these, None for no limit.
        live_otps: recent output tokens per second of a request.
        plain_otps: the same for requests repeated without speculation; 0 when there were none.
        length: recent acceptance length, left out if None.
        live_version: version that serves, left out if None.
    """
    parts = [f"{num_requests} of {wanted} requests" if wanted else count(num_requests, "request")]
    if length is not None:
        parts.append(f"acceptance length {length:.2f}")
    speed = f"{live_otps:.1f} tokens/s"
    if plain_otps:
        speed += f" (without speculation {plain_otps:.1f})"
    parts.append(speed)
    if live_version is not None:
        parts.append(f"live: {version_name(live_version)}")
    return ", ".join(parts)


def describe_learner(
    state: str, step: int, *, loss: float | None, staleness: float | None, behind: int
) -> str:
    """Return one line on the learner.

    Args:
        state: what it is doing.
        step: optimizer steps.
        loss: latest, left out if None.
        staleness: versions between the newest one and the traces it learns from, likewise.
        behind: versions between the newest one and the live one.
    """
    parts = [state.replace("_", " "), f"step {step:,}"]
    if loss is not None:
        parts.append(f"loss {loss:.3f}")
    if staleness is not None:
        parts.append(f"staleness {staleness:.1f}")
    parts.append(f"live is {count(behind, 'version')} behind")
    return ", ".join(parts)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def summary_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the key figures of report.json as (name, value), unmeasured ones as such."""
    requests, lossless, swaps = report["requests"], report["lossless"], report["swaps"]
    length, speed, learner = report["acceptance_length"], report["otps"], report["learner"]
    traces, memory = report["traces"], report["memory"]
    sent = f"{requests['finished']} finished, {requests['failed']} failed"
    if requests["unfinished"]:
        sent += f", {requests['unfinished']} unfinished"
    compared = f"{lossless['checked']} answers compared, {lossless['mismatches']} differ"
    if lossless["near_ties"]:
        compared += f", {lossless['near_ties']} part at a near-tie"
    lengths, stood_still = "not measured", "none"
    if length["last"] is not None:
        lengths = f"{_number(length['first'])} first, {_number(length['last'])} last"
        lengths += f" ({length['last_measured_on']})"
    if swaps["count"] or swaps["failed"] or swaps["by_engine"]:
        stood_still = f"{swaps['count']} done, {swaps['failed']} failed"
    if swaps["count"]:
        stood_still += f", decoding stood still for {_number(swaps['stall_ms_p99'])} ms (P99)"
    if swaps["by_engine"]:
        stood_still += f"; {count(swaps['by_engine'], 'change')} by the engine itself"
    pauses = ""
    if swaps["longest_gap_ms_p99"] is not None:
        pauses = (
            f"{swaps['longest_gap_ms_p99']:.0f} ms in requests at a swap, "
            f"{_number(swaps['longest_gap_ms_p99_elsewhere'], 0)} ms in all others (P99)"
        )
    dropped = report["records"]["dropped"]
    rates = length["per_position"]
    by_position = " ".join(f"{rate:.2f}" for rate in rates) if any(rates) else ""
    return [
        ("ended", report["ended"].replace("_", " ")),
        ("requests", sent),
        ("acceptance length", lengths),
        *([("by draft position", f"{by_position} (live traffic)")] if by_position else []),
        *_speed_rows(speed),
        *_lineage_rows(report.get("lineages", {})),
        ("lossless", compared if lossless["checked"] else "not checked"),
        ("swaps", stood_still),
        *([("longest pauses", pauses)] if pauses else []),
        (
            "learner",
            f"{learner['steps']:,} steps, {learner['tokens_trained']:,} tokens trained, "
            f"{count(learner['restarts'], 'restart')}",
        ),
        ("traces", f"{traces['kept']} kept, {traces['shed']} shed"),
        (
            "peak memory",
            f"engine {memory['engine_mib']:.0f} MiB, learner {memory['learner_mib']:.0f} MiB",
        ),
        *([("lost records", f"{dropped} lines did not fit on the disk")] if dropped else []),
        ("time", f"{report['wall_s']:.0f} s"),
        ("run directory", report["run_dir"]),
    ]


def _speed_rows(speed: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the speed-up, and both speeds with the spread over requests."""
    if speed["speedup"] is None:
        return [("speed-up", "not measured")]
    measured = speed["measurements"][0]

    def spread(distribution: Mapping[str, Any]) -> str:
        return f"({_number(distribution['p05'], 1)} to {_number(distribution['p95'], 1)})"

    return [
        (
            "speed-up",
            f"{speed['speedup']:.2f}x ({_number(measured['speedup_low'])} to "
            f"{_number(measured['speedup_high'])}) at batch size {speed['batch_size']}",
        ),
        (
            "output tokens/s",
            f"{speed['speculative']:.1f} {spread(measured['with']['otps'])} against "
            f"{speed['none']:.1f} {spread(measured['without']['otps'])} without speculation; "
            "medians, P05 to P95",
        ),
    ]


def _lineage_rows(lineages: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what each of several lineages reached on live traffic."""
    rows = []
    for name, one in lineages.items():
        length, speed = one["acceptance_length"], one["otps"]
        figures = f"acceptance length {_number(length['mean'])}, {_number(speed['mean'], 1)} "
        figures += f"({_number(speed['low'], 1)} to {_number(speed['high'], 1)}) tokens/s live"
        for measured in one["measured"][:1]:
            figures += f"; measured {measured['speedup']:.2f}x, {measured['acceptance_length']:.2f}"
        rows.append(
            (f"lineage {name}", f"{one['speculator']}, {one['requests']} requests, {figures}")
        )
    return rows


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
