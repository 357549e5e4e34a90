"""The suite of a trace sink: nothing held twice, nothing lost on restart, nobody kept waiting."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from aurora_core.interfaces import TraceSink
from aurora_core.records import Trace
from aurora_core.testing.suites.required import missing_fixture
from aurora_core.testing.traces import make_trace
from aurora_core.trace_validation import validate_trace

DEADLINE_S = 60.0
"""Seconds after which something that must return at once is said to hang."""


class TraceSinkSuite:
    """Promises of `TraceSink`, `TraceWriter` and `TraceReader`. Needs no target."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> TraceSink:
        """An empty sink with room for 200 small traces, which records every request."""
        missing_fixture("sink", "return an empty sink with room for 200 small traces")

    @pytest.fixture
    def small_sink(self, tmp_path: Path) -> TraceSink:
        """An empty sink that cannot hold 40 traces of 50 kB; needed to test that it is bounded."""
        pytest.skip(
            "override the fixture `small_sink` with one that cannot hold 40 traces of 50 kB"
        )

    def test_it_has_one_address(self, sink: TraceSink) -> None:
        assert "://" in sink.url
        assert sink.url == type(sink)(sink.options).url == sink.url

    def test_an_empty_sink_gives_nothing_at_once(self, sink: TraceSink) -> None:
        sink.prepare()
        sink.prepare()
        reader = sink.open_reader()
        assert reader.poll() == 0
        assert reader.sample(4, fresh=4) == []
        assert reader.holdout(4) == []
        assert list(reader.iterate()) == []
        assert reader.num_training == 0
        assert sink.stats().num_traces == 0

    def test_what_is_read_is_what_was_put(self, sink: TraceSink) -> None:
        """Every field, every tensor, every dtype: chains, trees, branch rows, plain decoding."""
        traces = [
            make_trace(1, topology="tree", branch_rows=True, tenant="t", route="r"),
            make_trace(2, version=-1, dtype=torch.float32),
            make_trace(3, features=(), finish_reason="stop"),
        ]
        assert put(sink, traces) == [True] * len(traces)
        reader = sink.open_reader()
        assert reader.poll() == len(traces)
        found = {trace.trace_id: trace for trace in reader.iterate()}
        for trace in traces:
            require_equal_traces(found[trace.trace_id], trace)

    def test_traces_come_oldest_first(self, sink: TraceSink) -> None:
        traces = [make_trace(seed) for seed in range(12)]
        put(sink, traces)
        reader = sink.open_reader()
        reader.poll()
        assert names(reader.iterate()) == names(traces)

    def test_every_training_trace_is_fresh_exactly_once(self, sink: TraceSink) -> None:
        put(sink, [make_trace(seed) for seed in range(40)])
        reader = sink.open_reader()
        num_taken = reader.poll()
        total = reader.num_training
        assert 0 < total <= num_taken == 40
        seen: list[str] = []
        while batch := reader.sample(7, fresh=3):
            new = [name for name in names(batch) if name not in seen]
            assert len(batch) == len(set(names(batch))) <= 7
            assert len(new) <= 3
            if not new:
                break
            seen += new
        assert len(seen) == len(set(seen)) == total
        assert reader.poll() == 0
        assert names(reader.sample(5, fresh=0))

    def test_held_out_requests_are_never_trained_on(self, sink: TraceSink) -> None:
        """The split is by request: what has equal prompts stays on one side, for every reader."""
        keys = [f"prompt {number}" for number in range(60)]
        put(sink, [make_trace(n, request_key=key) for n, key in enumerate([*keys, *keys])])
        reader, another = sink.open_reader(), type(sink)(sink.options).open_reader()
        reader.poll(), another.poll()
        trained = {trace.request_key for trace in reader.sample(120, fresh=120)}
        held_out = reader.holdout(120)
        assert held_out, "a share of the requests is held out"
        assert trained.isdisjoint(trace.request_key for trace in held_out)
        assert trained | {trace.request_key for trace in held_out} == set(keys)
        assert names(another.holdout(120)) == names(held_out)

    def test_the_newest_held_out_traces_come_oldest_first(self, sink: TraceSink) -> None:
        put(sink, [make_trace(seed, request_key=str(seed)) for seed in range(60)])
        reader = sink.open_reader()
        reader.poll()
        everything = names(reader.iterate())
        held_out = names(reader.holdout(60))
        assert held_out == sorted(held_out, key=everything.index)
        assert names(reader.holdout(2)) == held_out[-2:]

    def test_a_trace_is_held_once_however_often_it_is_put(self, sink: TraceSink) -> None:
        trace = make_trace(1, trace_id="the same")
        writer = sink.open_writer()
        assert writer.put(trace)
        assert not writer.put(trace)
        writer.close()
        put(type(sink)(sink.options), [trace, make_trace(2)])
        reader = sink.open_reader()
        reader.poll()
        assert sorted(names(reader.iterate())).count("the same") == 1

    def test_what_was_written_survives_a_restart(self, sink: TraceSink) -> None:
        """Another process builds the sink from equal options and finds everything."""
        traces = [make_trace(seed) for seed in range(9)]
        put(sink, traces)
        again = type(sink)(type(sink).Config.model_validate(sink.options.model_dump()))
        reader = again.open_reader()
        assert reader.poll() == len(traces)
        assert names(reader.iterate()) == names(traces)
        put(again, [make_trace(100)])
        assert reader.poll() == 1

    def test_a_reader_goes_on_where_its_state_was_taken(self, sink: TraceSink) -> None:
        """The state is JSON; the next draws are those that would have come anyway."""
        put(sink, [make_trace(seed) for seed in range(40)])
        reader = sink.open_reader()
        reader.poll()
        reader.sample(8, fresh=6)
        state = json.loads(json.dumps(reader.state_dict()))
        put(sink, [make_trace(200)])
        resumed = sink.open_reader()
        resumed.load_state_dict(state)
        resumed.poll(), reader.poll()
        for _ in range(6):
            assert names(resumed.sample(6, fresh=2)) == names(reader.sample(6, fresh=2))
        assert resumed.num_training == reader.num_training

    def test_a_full_sink_stays_within_its_bounds_and_says_what_it_shed(
        self, small_sink: TraceSink
    ) -> None:
        """A writer without a reader, as when the learner is down."""
        held = []
        for turn in range(3):
            put(small_sink, [_large_trace(100 * turn + number) for number in range(40)])
            held.append(small_sink.stats())
        assert 0 < held[0].num_traces < 40
        assert held[2].num_traces < 40
        assert held[2].num_bytes <= 1.5 * held[0].num_bytes
        assert sum(held[2].shed.values()) >= 120 - held[2].num_traces

    def test_putting_never_blocks(self, small_sink: TraceSink) -> None:
        writer = small_sink.open_writer()
        traces = [_large_trace(number) for number in range(60)]
        answers: list[bool] = []
        thread = threading.Thread(
            target=lambda: answers.extend(writer.put(trace) for trace in traces), daemon=True
        )
        thread.start()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "put waits for room"
        assert len(answers) == len(traces)
        writer.close()

    def test_putting_does_no_input_or_output_in_the_callers_thread(self, sink: TraceSink) -> None:
        """The caller is the engine between two steps: a slow disk must not slow decoding."""
        writer = sink.open_writer()
        with _Watch() as watch:
            for seed in range(5):
                writer.put(make_trace(seed))
        writer.close()
        assert watch.events == []

    def test_puts_of_many_threads_are_all_kept(self, sink: TraceSink) -> None:
        writer = sink.open_writer()
        groups = [[make_trace(10 * g + n) for n in range(8)] for g in range(4)]
        threads = [
            threading.Thread(target=lambda group=group: [writer.put(trace) for trace in group])
            for group in groups
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        writer.close()
        reader = sink.open_reader()
        reader.poll()
        assert sorted(names(reader.iterate())) == sorted(names(t for g in groups for t in g))

    def test_counts_add_up(self, sink: TraceSink) -> None:
        """Every trace put is kept or shed, by each writer and over all of them."""
        first = [make_trace(seed) for seed in range(5)]
        writer = sink.open_writer()
        answers = [writer.put(trace) for trace in [*first, first[0]]]
        writer.close()
        stats = writer.stats()
        assert stats.kept == sum(answers) == 5
        assert sum(stats.shed.values()) == 1
        put(sink, [make_trace(seed) for seed in range(5, 9)])
        total = type(sink)(sink.options).stats()
        assert (total.num_traces, total.kept, sum(total.shed.values())) == (9, 9, 1)
        assert total.num_bytes > 0

    def test_closing_twice_is_harmless_and_a_closed_writer_refuses(self, sink: TraceSink) -> None:
        writer = sink.open_writer()
        assert writer.put(make_trace(1))
        writer.close()
        writer.close()
        assert writer.put(make_trace(2)) is False
        assert sum(writer.stats().shed.values()) == 1

    def test_a_killed_writer_leaves_whole_traces_only(self, sink: TraceSink) -> None:
        """SIGKILL in the middle of writing: what can be read is sound, and work goes on."""
        component = type(sink)
        module = importlib.import_module(component.__module__)
        if getattr(module, component.__qualname__, None) is not component:
            pytest.skip("another process cannot import the class of this sink")
        program = "aurora_core.testing.suites.sink_process"
        arguments = (component.__module__, component.__qualname__, sink.options.model_dump_json())
        with subprocess.Popen(
            [sys.executable, "-m", program, *arguments], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= 5:
                    break
            process.kill()
        reader = sink.open_reader()
        assert reader.poll() >= 5
        for trace in reader.iterate():
            validate_trace(trace)
        put(sink, [make_trace(1, trace_id="after")])
        assert reader.poll() >= 1
        assert "after" in names(reader.iterate())


def put(sink: TraceSink, traces: Sequence[Trace]) -> list[bool]:
    """Hand traces over, a few at a time, and wait until they are written; return the answers."""
    answers = []
    for start in range(0, len(traces), 32):
        writer = sink.open_writer()
        answers += [writer.put(trace) for trace in traces[start : start + 32]]
        writer.close()
    return answers


def names(traces: Iterable[Trace]) -> list[str]:
    """Return the ids of traces."""
    return [trace.trace_id for trace in traces]


def require_equal_traces(found: Trace, expected: Trace) -> None:
    """Compare two traces field by field."""
    _require_equal(found, expected, "trace")


def _require_equal(found: object, expected: object, where: str) -> None:
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, msg=where)
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            name = field.name
            _require_equal(getattr(found, name), getattr(expected, name), f"{where}.{name}")
    elif isinstance(expected, dict):
        assert isinstance(found, dict)
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            _require_equal(found[key], value, f"{where}[{key!r}]")
    else:
        assert found == expected, where


def _large_trace(seed: int) -> Trace:
    """Return a trace of about 50 kB."""
    return make_trace(seed, hidden_size=256, num_steps=12, num_speculative_tokens=2)


class _Watch:
    """Notes what the current thread opens, renames or connects to. An audit hook stays for ever."""

    _active: ClassVar[dict[int, list[str]]] = {}
    _installed: ClassVar[bool] = False

    def __enter__(self) -> _Watch:
        if not _Watch._installed:
            _Watch._installed = True
            sys.addaudithook(_Watch._note)
        self.events: list[str] = []
        _Watch._active[threading.get_ident()] = self.events
        return self

    def __exit__(self, *error: object) -> None:
        del _Watch._active[threading.get_ident()]

    @classmethod
    def _note(cls, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "socket.connect"):
            events = cls._active.get(threading.get_ident())
            if events is not None:
                events.append(event)
