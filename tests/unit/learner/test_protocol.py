from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from aurora_core.learner.protocol import (
    Command,
    Event,
    Live,
    Progress,
    Published,
    Started,
    Stop,
    Stopped,
    Waiting,
    command_line,
    event_line,
    read_command,
    read_event,
)
from aurora_core.records import DraftVersion, Holdout

DRAFT = DraftVersion(
    version=3,
    path="versions/v000003",
    parent=2,
    speculator="toy",
    target_fingerprint="target",
    global_step=40,
    num_tokens_trained=900,
    created=1.5,
    checksum="abc",
    metrics={"train/loss": 2.5},
    holdout=Holdout(
        live_version=2,
        num_anchors=(4,),
        candidate_accepted=((3, 1),),
        live_accepted=((2, 1),),
    ),
)


@pytest.mark.parametrize(
    "event",
    [
        Started(step=4, resumed=True),
        Progress(step=5, metrics={"train/loss": 1.25}),
        Published(version=DRAFT),
        Waiting(reason="no traces"),
        Stopped(step=6),
    ],
)
def test_an_event_is_one_line_and_reads_back(event: Event) -> None:
    line = event_line(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line)["event"] == type(event).__name__.lower()
    assert read_event(line) == event


@pytest.mark.parametrize("command", [Live(version=3), Live(version=None), Stop()])
def test_a_command_is_one_line_and_reads_back(command: Command) -> None:
    line = command_line(command)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert read_command(line) == command


@pytest.mark.parametrize("line", ["", "{}", '{"event": "party"}', '{"event": "stopped"}'])
def test_anything_else_is_no_event(line: str) -> None:
    with pytest.raises(ValidationError):
        read_event(line)
