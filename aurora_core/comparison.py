"""Versions of a run side by side on the traces that none of them was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aurora_core.acceptance import acceptance_length
from aurora_core.confidence import Interval, bootstrap_acceptance, resample
from aurora_core.errors import ConfigError
from aurora_core.run_replay import RunReplay
from aurora_core.versions import VersionStore

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.learner.holdout import Score
    from aurora_core.plugins import Plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFigures:
    """One version on the held-out traces."""

    version: int
    acceptance_length: float
    positions: tuple[Interval, ...]
    """Acceptance at each draft position. [K]"""
    gain: Interval | None
    """In acceptance length over the first version compared; None for that one itself."""
    by_label: Mapping[str, float]
    """Acceptance length by tenant and route, where traces carry several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `aurora compare` found."""

    num_traces: int
    num_anchors: int
    confidence: float
    versions: tuple[VersionFigures, ...]


def compare_versions(
    config: RunConfig,
    plugins: Plugins,
    versions: Sequence[int],
    *,
    num_traces: int,
    confidence: float,
    seed: int = 0,
) -> Comparison:
    """Replay held-out traces of a run through several of its versions.

    Args:
        config: of the run.
        plugins: loaded plugins.
        versions: numbers, at least one; the others are compared with the first.
        num_traces: newest held-out traces to replay.
        confidence: of every interval, over resampled traces.
        seed: of the resampling.

    Raises:
        ConfigError: there are no held-out traces.
        CheckpointError: a version is missing or damaged.
    """
    store = VersionStore(config.run_dir / "versions")
    drafts = [store.verify(version) for version in versions]
    replay = RunReplay(config, plugins, num_traces=num_traces, purpose="compare on")
    scores = {draft.version: replay.score(replay.load(Path(draft.path))) for draft in drafts}
    return figures(scores, confidence=confidence, seed=seed)


def figures(
    scores: Mapping[int, Mapping[str, Score]], *, confidence: float, seed: int = 0
) -> Comparison:
    """Return the figures of several versions on the traces that all were scored on.

    Args:
        scores: version -> trace id -> score; the first version is the one compared with.
        confidence: of every interval.
        seed: of the resampling.

    Raises:
        ConfigError: there are none.
    """
    first, *_ = scores.values()
    ids = [one for one in first if all(one in other for other in scores.values())]
    anchors = np.array([first[one].num_anchors for one in ids], dtype=np.int64)
    if not anchors.sum():
        raise ConfigError(
            "none of the held-out traces can be replayed through all of these versions; serve more "
            "requests, or raise --traces"
        )
    reference = _sums(first, ids)
    versions = []
    for version, of_version in scores.items():
        accepted = [of_version[one].accepted for one in ids]
        sums = _sums(of_version, ids)
        positions = bootstrap_acceptance(
            anchors.tolist(), accepted, confidence=confidence, seed=seed
        )
        gain = None
        if of_version is not first:
            gain = _gain(sums - reference, anchors, confidence=confidence, seed=seed)
        versions.append(
            VersionFigures(
                version=version,
                acceptance_length=acceptance_length(int(sums.sum()), int(anchors.sum())),
                positions=positions,
                gain=gain,
                by_label=_by_label(of_version, ids),
            )
        )
    return Comparison(
        num_traces=len(ids),
        num_anchors=int(anchors.sum()),
        confidence=confidence,
        versions=tuple(versions),
    )


def as_text(found: Comparison) -> str:
    """Return a comparison as aligned lines, at most 100 characters wide for five positions."""
    lines = [
        f"{found.num_traces} held-out traces, {found.num_anchors} positions; bounds with "
        f"{found.confidence:.0%} confidence"
    ]
    num_positions = max((len(one.positions) for one in found.versions), default=0)
    rows = [["version", "length", "gain", *(f"position {k}" for k in range(1, num_positions + 1))]]
    for one in found.versions:
        gain = "" if one.gain is None else _bounds(one.gain, "+.2f")
        cells = [_bounds(position, ".2f") for position in one.positions]
        rows.append([str(one.version), f"{one.acceptance_length:.2f}", gain, *cells])
    lines += _align(rows)
    labels = sorted({label for one in found.versions for label in one.by_label})
    if labels:
        table = [["length at", *(f"version {one.version}" for one in found.versions)]]
        for label in labels:
            cells = [f"{one.by_label.get(label, 1.0):.2f}" for one in found.versions]
            table.append([label, *cells])
        lines += ["", *_align(table)]
    return "\n".join(lines)


def _gain(gained: np.ndarray, anchors: np.ndarray, *, confidence: float, seed: int) -> Interval:
    occurs = resample(len(anchors), num_resamples=2000, seed=seed)
    scored = occurs @ anchors
    gains = (occurs @ gained)[scored > 0] / scored[scored > 0]
    tail = (1 - confidence) / 2
    lower, upper = np.quantile(gains, (tail, 1 - tail))
    return Interval(float(gained.sum() / anchors.sum()), float(lower), float(upper))


def _by_label(scores: Mapping[str, Score], ids: Sequence[str]) -> dict[str, float]:
    groups: dict[str, list[Score]] = {}
    for one in ids:
        score = scores[one]
        label = "/".join(part for part in (score.tenant, score.route) if part) or "unlabelled"
        groups.setdefault(label, []).append(score)
    if len(groups) < 2:
        return {}
    return {
        label: acceptance_length(
            sum(sum(one.accepted) for one in some), sum(one.num_anchors for one in some)
        )
        for label, some in sorted(groups.items())
    }


def _sums(scores: Mapping[str, Score], ids: Sequence[str]) -> np.ndarray:
    return np.array([sum(scores[one].accepted) for one in ids], dtype=np.int64)


def _bounds(found: Interval, form: str) -> str:
    return f"{found.estimate:{form}} ({found.lower:{form}} to {found.upper:{form}})"


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
