"""What controller and learner say to each other: one JSON object a line, over stdin and stdout.

    controller                                   learner
        | -- live, fresh, turn, stop stdin -------> |   end of file: the controller is gone
        | <-- started, progress, ... stdout ------- |   nothing but events
        |                            stderr ------> log

A learner stops cleanly, with a checkpoint, on `stop`, end of file, SIGTERM and SIGINT. It may be
killed at any moment: the next one continues from the last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from aurora_core.records import DraftVersion

USER_ERROR = 2
"""Exit status of a learner that cannot be configured as asked; its stderr ends with why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The drafter is built or resumed, and training begins."""

    event: Literal["started"] = "started"
    step: int
    """Optimizer steps behind the weights."""
    resumed: bool
    """Whether a checkpoint was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Training goes on. At most once a second."""

    event: Literal["progress"] = "progress"
    step: int
    metrics: dict[str, float]
    """Finite numbers by names with a slash, for example `train/loss`; see `learner.progress`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A version is complete on disk."""

    event: Literal["published"] = "published"
    version: DraftVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Training rests. The next `progress` says that it goes on."""

    event: Literal["waiting"] = "waiting"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The last event of a clean stop; a checkpoint is on disk if anything was learned."""

    event: Literal["stopped"] = "stopped"
    step: int


Event = Annotated[Started | Progress | Published | Waiting | Stopped, Field(discriminator="event")]
"""From the learner to the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The engine drafts with this version now; None means no speculation."""

    command: Literal["live"] = "live"
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """The traffic has changed: train on new traces alone for a while, as far as there are any."""

    command: Literal["fresh"] = "fresh"
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whether to train now; otherwise another lineage's learner has the machine."""

    command: Literal["turn"] = "turn"
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Finish the step, write a checkpoint and exit."""

    command: Literal["stop"] = "stop"


Command = Annotated[Live | Fresh | Turn | Stop, Field(discriminator="command")]
"""From the controller to the learner."""

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_COMMAND: TypeAdapter[Command] = TypeAdapter(Command)


def event_line(event: Event) -> bytes:
    """Return an event as one line of JSON with its newline."""
    return _EVENT.dump_json(event) + b"\n"


def read_event(line: str | bytes) -> Event:
    """Read an event; raises `pydantic.ValidationError` on anything else."""
    return _EVENT.validate_json(line)


def command_line(command: Command) -> bytes:
    """Return a command as one line of JSON with its newline."""
    return _COMMAND.dump_json(command) + b"\n"


def read_command(line: str | bytes) -> Command:
    """Read a command; raises `pydantic.ValidationError` on anything else."""
    return _COMMAND.validate_json(line)
