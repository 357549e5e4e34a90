"""What drafters are shown of the time before the engine's start."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from aurora_backend_torch import earlier_traces
from aurora_backend_torch.earlier_traces import observe_earlier
from aurora_backend_torch.residents import Residents
from aurora_core.records import Trace
from aurora_core.spool.options import SpoolOptions
from aurora_core.spool.sink import SpoolSink
from aurora_core.testing.traces import make_trace


class Watching:
    """Stands for the residents: notes what is observed."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def observe(self, trace: Trace) -> None:
        self.seen.append(trace.trace_id)


@pytest.fixture
def sink(tmp_path: Path) -> SpoolSink:
    return SpoolSink(SpoolOptions(path=tmp_path / "spool"))


def fill(sink: SpoolSink, count: int) -> list[str]:
    writer = sink.open_writer()
    traces = [make_trace(seed, created=100.0 + seed) for seed in range(count)]
    for trace in traces:
        assert writer.put(trace)
    writer.close()
    return [trace.trace_id for trace in traces]


def observed(sink: SpoolSink) -> list[str]:
    watching = Watching()
    count = observe_earlier(cast(Residents, watching), sink)
    assert count == len(watching.seen)
    return watching.seen


def test_the_newest_traces_are_shown_oldest_first(
    sink: SpoolSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = fill(sink, 5)
    assert observed(sink) == names
    monkeypatch.setattr(earlier_traces, "NUM_OBSERVED", 2)
    assert observed(sink) == names[-2:]


def test_a_sink_that_was_never_written_is_not_created(sink: SpoolSink) -> None:
    assert observed(sink) == []
    assert not sink.options.path.exists()


def test_a_sink_that_cannot_be_read_costs_the_past_only(
    sink: SpoolSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(sink, 1)

    def refuse(_: SpoolSink) -> None:
        raise OSError("no such disk")

    monkeypatch.setattr(SpoolSink, "open_reader", refuse)
    assert observed(sink) == []
