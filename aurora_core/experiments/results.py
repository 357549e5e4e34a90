"""What an arm left behind, in one JSON file: complete or absent, so that arms can be resumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from aurora_core import wire
from aurora_core.controller.run_directory import replace_file
from aurora_core.errors import ConfigError
from aurora_core.experiments.streams import StreamName
from aurora_core.traffic.results import ReplayResult

SCHEMA = 1
"""Version of the layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFigures:
    """One request of a stream, or one reference."""

    index: int
    """Position in the stream; of a reference, that of the request which it repeats."""
    domain: str
    error: str = ""
    """Empty for a request that was answered."""
    num_output_tokens: int = 0
    num_steps: int = 0
    """Verification steps, those without drafts included."""
    num_accepted: int = 0
    otps: float | None = None
    """Output tokens per second after the first one; None below two tokens."""
    ended_s: float = 0.0
    """Seconds from the start of the stream."""
    min_draft_version: int = -1
    max_draft_version: int = -1
    token_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, result: ReplayResult, *, index: int, domain: str, ended_s: float) -> Self:
        """Return the figures of a request that was sent."""
        stats = result.aurora
        return cls(
            index=index,
            domain=domain,
            error=result.error,
            num_output_tokens=result.num_output_tokens,
            num_steps=stats.num_steps if stats else 0,
            num_accepted=sum(stats.accepted_per_position) if stats else 0,
            otps=result.otps,
            ended_s=ended_s,
            min_draft_version=stats.min_draft_version if stats else -1,
            max_draft_version=stats.max_draft_version if stats else -1,
            token_ids=result.token_ids or (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that the controller did or found while the stream ran."""

    kind: str
    """`promote`, `roll_back`, `disable_speculation`, `drift` or `engine_changed`."""
    version: int
    num_requests: int
    """Requests of the stream that had ended by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm on one stream with one seed."""

    arm: str
    stream: StreamName
    seed: int
    requests: tuple[RequestFigures, ...]
    """In the order of the stream."""
    references: tuple[RequestFigures, ...]
    events: tuple[Event, ...]
    wall_s: float
    started: float
    """Unix seconds."""
    schema: int = SCHEMA


def write_result(path: Path, result: ArmResult) -> None:
    """Write a result, whole or not at all.

    Raises:
        ConfigError: the disk does not take it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, wire.to_json(result) + "\n")
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def read_result(path: Path) -> ArmResult | None:
    """Read a result; None if the arm was not run.

    Raises:
        ConfigError: the file is of something else.
    """
    try:
        result = wire.from_json(ArmResult, path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{str(path)!r} is no result of this experiment; delete it to run that arm again"
        ) from error
    if result.schema != SCHEMA:
        raise ConfigError(
            f"{str(path)!r} has schema {result.schema}, expected {SCHEMA}; delete it to run that "
            "arm again"
        )
    return result


def read_events(
    lines: list[dict[str, Any]], ended: list[float], *, started: float
) -> tuple[Event, ...]:
    """Return what changed while a stream ran.

    Args:
        lines: of `verdicts.jsonl`.
        ended: seconds from the start at which each request ended.
        started: Unix seconds of the start; what is older belongs to an earlier run.
    """
    events, action = [], ""
    for line in lines:
        if line["kind"] == "verdict":
            action = line["verdict"]["action"]
        kinds = {"swap": action, "drift": "drift", "engine_changed": "engine_changed"}
        if line["kind"] in kinds and line["time"] >= started:
            num_requests = sum(moment <= line["time"] - started for moment in ended)
            events.append(
                Event(kind=kinds[line["kind"]], version=line["version"], num_requests=num_requests)
            )
    return tuple(events)
