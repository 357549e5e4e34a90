"""What an ablation found: means over seeds, intervals over held-out traces, and two tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTHS = (3, 5, 8)
"""Draft tokens for which acceptance lengths are given."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Run:
    """One arm trained with one seed."""

    arm: str
    seed: int
    accepted: Sequence[Sequence[int]]
    """[traces][depth] Anchors whose first k drafts were all right."""
    anchors: Sequence[int]
    """[traces] Anchors scored."""
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float

    def text(self, digits: int = 3, *, signed: bool = False) -> str:
        """Return `mean [low, high]`."""
        shape = f"{{:{'+' if signed else ''}.{digits}f}}"
        return f"{shape.format(self.mean)} [{shape.format(self.low)}, {shape.format(self.high)}]"


def resampled_shares(runs: Sequence[Run], resamples: int, seed: int = 0) -> Floats:
    """Return shares of anchors accepted, [1 + resamples, depth], means over the runs of an arm.

    The first row is of all traces; each other one of traces drawn with replacement, the same ones
    for every run and every arm, so that arms can be compared row by row.
    """
    num_traces = len(runs[0].anchors)
    draws = np.random.default_rng(seed).multinomial(
        num_traces, np.full(num_traces, 1 / num_traces), resamples
    )
    counts = np.concatenate([np.ones((1, num_traces)), draws])
    shares = []
    for run in runs:
        accepted = counts @ np.asarray(run.accepted, dtype=np.float64)
        anchors = counts @ np.asarray(run.anchors, dtype=np.float64)
        shares.append(accepted / np.maximum(anchors, 1)[:, None])
    return np.mean(shares, axis=0)


def estimate(values: Floats) -> Estimate:
    """Return the first value with the 2.5th and 97.5th percentile of the others."""
    low, high = np.percentile(values[1:], [2.5, 97.5])
    return Estimate(float(values[0]), float(low), float(high))


def acceptance_lengths(shares: Floats, num_tokens: int) -> Floats:
    """Return 1 + the sum of the first shares, for each resample."""
    return 1 + shares[:, :num_tokens].sum(1)


def write_tables(
    out: Path, runs: Sequence[Run], settings: Mapping[str, Any], *, baseline: str, resamples: int
) -> None:
    """Write ablation.md and ablation.json from the runs so far.

    Differences are to the baseline arm, over the seeds that both have.
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    results: dict[str, dict[str, Any]] = {}
    for arm in arms:
        mine = [run for run in runs if run.arm == arm]
        shares = resampled_shares(mine, resamples)
        seeds = {run.seed for run in mine}
        paired = [run for run in runs if run.arm == baseline and run.seed in seeds]
        both = [run for run in mine if run.seed in {other.seed for other in paired}]
        result: dict[str, Any] = {
            "seeds": sorted(seeds),
            "cpu_s": round(sum(run.cpu_s for run in mine), 1),
            "positions": [estimate(shares[:, k]) for k in range(shares.shape[1])],
            "lengths": {n: estimate(acceptance_lengths(shares, n)) for n in LENGTHS},
            "per_seed": {
                run.seed: [
                    round(float(acceptance_lengths(resampled_shares([run], 0), n)[0]), 3)
                    for n in LENGTHS
                ]
                for run in mine
            },
        }
        if arm != baseline and both:
            ours, theirs = resampled_shares(both, resamples), resampled_shares(paired, resamples)
            result["differences"] = {
                n: estimate(acceptance_lengths(ours, n) - acceptance_lengths(theirs, n))
                for n in LENGTHS
            }
        results[arm] = result
    (out / "ablation.md").write_text(_markdown(results, settings, baseline))
    plain = json.dumps({"settings": settings, "arms": results}, default=_fields, indent=1)
    (out / "ablation.json").write_text(plain)


def _markdown(
    results: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any], baseline: str
) -> str:
    lines = [
        ", ".join(f"{name} {value}" for name, value in settings.items() if value != ""),
        "",
        f"| arm | seeds | {' | '.join(f'length, {n} tokens' for n in LENGTHS)} | "
        f"{' | '.join(f'minus {baseline}, {n}' for n in LENGTHS)} | CPU s |",
        "| --- " * (3 + 2 * len(LENGTHS)) + "|",
    ]
    for arm, result in results.items():
        lengths = [result["lengths"][n].text() for n in LENGTHS]
        differences = result.get("differences")
        against = [differences[n].text(signed=True) if differences else "" for n in LENGTHS]
        cells = [arm, len(result["seeds"]), *lengths, *against, result["cpu_s"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    depth = len(next(iter(results.values()))["positions"])
    positions = " | ".join(f"position {k + 1}" for k in range(depth))
    lines += ["", f"| arm | {positions} |", "| --- " * (1 + depth) + "|"]
    for arm, result in results.items():
        shares = " | ".join(one.text() for one in result["positions"])
        lines.append(f"| {arm} | {shares} |")
    return "\n".join(lines) + "\n"


def _fields(value: Estimate) -> dict[str, float]:
    return {name: round(getattr(value, name), 4) for name in value.__slots__}
