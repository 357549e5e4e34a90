from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from time import monotonic, sleep

from aurora_core.learner.control import Control, EventWriter
from aurora_core.learner.protocol import Stopped, Waiting, event_line


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = monotonic() + 20
    while not condition() and monotonic() < deadline:
        sleep(0.01)
    return condition()


def test_commands_arrive_and_nonsense_is_ignored() -> None:
    control = Control(live_version=1)
    reading, writing = os.pipe()
    control.listen(reading)
    os.write(writing, b'nonsense\n{"command": "dance"}\n{"command": "live", "ver')
    os.write(writing, b'sion": 4}\n')
    assert eventually(lambda: control.live_version == 4)
    os.write(writing, b'{"command": "live", "version": null}\n')
    assert eventually(lambda: control.live_version is None)
    assert not control.is_stopping
    os.write(writing, b'{"command": "stop"}\n')
    assert eventually(lambda: control.is_stopping)
    os.close(writing)


def test_the_end_of_the_pipe_stops_the_learner() -> None:
    control = Control()
    reading, writing = os.pipe()
    control.listen(reading)
    assert not control.is_stopping
    os.close(writing)
    assert eventually(lambda: control.is_stopping)


def test_a_pipe_that_was_never_open_stops_the_learner() -> None:
    control = Control()
    control.listen(1_000_000)
    assert eventually(lambda: control.is_stopping)


def test_events_that_nobody_reads_stop_the_learner() -> None:
    control = Control()
    reading, writing = os.pipe()
    os.close(reading)
    events = EventWriter(io.FileIO(writing, "wb"), control)
    events.write(Stopped(step=1))
    assert control.is_stopping
    events.write(Stopped(step=2))


def test_a_long_event_is_written_whole_although_writes_fall_short() -> None:
    class ShortWrites(io.BytesIO):
        def write(self, data: object) -> int:
            return super().write(bytes(data)[:7])  # type: ignore[call-overload]

    stream = ShortWrites()
    event = Waiting(reason="x" * 100)
    EventWriter(stream, Control()).write(event)  # type: ignore[arg-type]
    assert stream.getvalue() == event_line(event)


def test_stray_prints_never_reach_the_events() -> None:
    program = """
import os, sys
from aurora_core.learner.control import Control, EventWriter, claim_stdout
from aurora_core.learner.protocol import Stopped
events = EventWriter(claim_stdout(), Control())
print("a print")
os.system("echo a child")
events.write(Stopped(step=1))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout) == {"event": "stopped", "step": 1}
    assert b"a print" in done.stderr and b"a child" in done.stderr
