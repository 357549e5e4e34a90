"""What a learner process is told at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from aurora_core import wire
from aurora_core.config import LearnerSection
from aurora_core.errors import ConfigError
from aurora_core.records import DraftVersion, TargetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerPlan:
    """Everything a learner is told at start. Serialisable: it crosses a process boundary."""

    target: TargetSpec
    speculator: str
    """Registered name."""
    speculator_options: Mapping[str, object]
    plugins: tuple[str, ...] | None
    """Plugins to load in the learner process; None loads all installed."""
    sink: str
    """Registered name of the trace sink to read from."""
    sink_options: Mapping[str, object]
    """Its options with the run's own filled in: another process must find the same sink."""
    versions_dir: str
    """Folder that versions are published to, and that the live version is read from."""
    learner_dir: str
    """Folder of the lineage and its checkpoints; a learner continues from what it finds there."""
    initial_version: DraftVersion | None
    """Live when the run starts. A new lineage starts from its weights; None starts from nothing."""
    num_speculative_tokens: int
    """Draft positions that versions are scored on."""
    learner: LearnerSection
    seed: int


def write_plan(plan: LearnerPlan, path: Path) -> None:
    """Write a plan for `python -m aurora_core.learner PATH`."""
    path.write_text(wire.to_json(plan), encoding="utf-8")


def read_plan(path: Path) -> LearnerPlan:
    """Read what `write_plan` wrote.

    Raises:
        ConfigError: there is no such file, or it holds no learner plan.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"learner plan {str(path)!r} cannot be read: {reason}") from error
    try:
        return wire.from_json(LearnerPlan, text)
    except ValidationError as error:
        where, fault = wire.first_fault(error)
        raise ConfigError(
            f"{str(path)!r} is not a learner plan: {where or 'the whole file'}: {fault}"
        ) from error
