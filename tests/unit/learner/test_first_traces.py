from __future__ import annotations

from typing import Any

from aurora_core.learner.control import Control
from aurora_core.learner.first_traces import wait_for_traces
from aurora_core.testing.toy_speculator import ToySpeculator

NAN = float("nan")


def test_enough_traces_are_returned_and_stay_new(
    speculator: ToySpeculator, memory_reader: Any, make_trace: Any, control: Control, recorder: Any
) -> None:
    reader = memory_reader([make_trace(seed) for seed in range(5)])
    traces = wait_for_traces(reader, speculator, 3, control=control, events=recorder)
    assert traces is not None and len(traces) == 3
    assert len(reader.fresh) == 5 and not reader.seen


def test_unusable_traces_do_not_count(
    speculator: ToySpeculator, memory_reader: Any, make_trace: Any, control: Control, recorder: Any
) -> None:
    reader = memory_reader([make_trace(0, last_hidden_state=NAN), make_trace(1)])
    late = [make_trace(2, last_hidden_state=NAN), make_trace(3)]

    class Late(type(reader)):  # type: ignore[misc]
        def poll(self) -> int:
            num_new = super().poll()
            self.arriving, late[:] = late[:1], late[1:]
            return num_new

    reader.__class__ = Late
    traces = wait_for_traces(reader, speculator, 2, control=control, events=recorder)
    assert traces is not None
    assert [int(trace.token_ids[0]) for trace in traces] == [1, 3]
    assert [event.reason for event in recorder.of("waiting")][:1] == [
        "2 of the 3 traces to start from are there"
    ]


def test_a_stop_ends_the_wait(
    speculator: ToySpeculator, memory_reader: Any, control: Control, recorder: Any
) -> None:
    control.stop()
    assert wait_for_traces(memory_reader(), speculator, 1, control=control, events=recorder) is None
