from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import lightning
import pytest
import torch
from torch import nn

from aurora_core.config import LearnerSection
from aurora_core.interfaces import TraceReader
from aurora_core.learner.control import Control
from aurora_core.learner.health import BadShare
from aurora_core.learner.stream import TraceStream
from aurora_core.records import Trace
from aurora_core.testing.toy_speculator import ToySpeculator

NAN = float("nan")


@pytest.fixture
def make_stream(
    speculator: ToySpeculator, control: Control, recorder: Any
) -> Callable[..., TraceStream]:
    def make(reader: TraceReader | None, *, num_ranks: int = 1, **options: Any) -> TraceStream:
        section = LearnerSection(**({"batch_traces": 2, "fresh_traces": 1} | options))
        return TraceStream(
            reader,
            speculator,
            section,
            control=control,
            events=recorder,
            health=BadShare(section.max_bad_share, min_outcomes=4),
            num_ranks=num_ranks,
            pause_s=0.0,
        )

    return make


def first_tokens(batch: dict[str, torch.Tensor]) -> list[int]:
    return batch["token_ids"][:, 0].tolist()


def all_first_tokens(batches: list[dict[str, torch.Tensor]]) -> list[int]:
    return [token for batch in batches for token in first_tokens(batch)]


def until_rest(stream: TraceStream, control: Control) -> list[dict[str, torch.Tensor]]:
    """Take batches until training rests, then stop."""
    stream.on_rest = control.stop
    return list(stream)


def test_batches_mix_new_and_replayed_traces(
    make_stream: Any, make_trace: Any, memory_reader: Any
) -> None:
    stream = make_stream(memory_reader([make_trace(seed) for seed in range(3)]))
    batches = [first_tokens(batch) for batch in islice(stream, 4)]
    assert batches == [[0], [1, 0], [2, 1], [2, 0]]


def test_a_trace_is_replayed_so_often_on_average(
    make_stream: Any, make_trace: Any, memory_reader: Any, control: Control
) -> None:
    stream = make_stream(
        memory_reader([make_trace(seed) for seed in range(3)]), max_replays_per_trace=2
    )
    trained = all_first_tokens(until_rest(stream, control))
    assert sorted(set(trained)) == [0, 1, 2]
    assert len(trained) == 3 + 3 * 2


def test_without_replays_every_trace_is_trained_once(
    make_stream: Any, make_trace: Any, memory_reader: Any, control: Control
) -> None:
    stream = make_stream(
        memory_reader([make_trace(seed) for seed in range(3)]), max_replays_per_trace=0
    )
    assert all_first_tokens(until_rest(stream, control)) == [0, 1, 2]


def test_an_exhausted_sink_is_left_alone_until_traces_arrive(
    make_stream: Any, make_trace: Any, memory_reader: Any, control: Control
) -> None:
    reader = memory_reader([make_trace(0)])
    stream = make_stream(reader, max_replays_per_trace=0)
    rests: list[int] = []

    def on_rest() -> None:
        rests.append(reader.position)
        if len(rests) == 3:
            reader.arriving.append(make_trace(1))
        if len(rests) == 5:
            control.stop()

    stream.on_rest = on_rest
    assert [first_tokens(batch) for batch in stream] == [[0], [1]]
    # One look finds out that nothing is left; the others do not touch the sink.
    assert rests[0] == rests[1] == rests[2]


def test_a_stop_ends_the_stream(
    make_stream: Any, make_trace: Any, memory_reader: Any, control: Control
) -> None:
    batches = iter(make_stream(memory_reader([make_trace(0)])))
    next(batches)
    control.stop()
    assert list(batches) == []


def test_refused_traces_are_counted_once_and_never_reach_a_batch(
    make_stream: Any, make_trace: Any, memory_reader: Any, control: Control
) -> None:
    traces = [make_trace(0), make_trace(1, last_hidden_state=NAN), make_trace(2)]
    stream = make_stream(memory_reader(traces), fresh_traces=2, max_replays_per_trace=2)
    batches = until_rest(stream, control)
    assert stream.num_skipped_traces == 1
    assert {token for batch in batches for token in first_tokens(batch)} == {0, 2}
    assert all(batch["hidden"].isfinite().all() for batch in batches)


def test_replay_goes_on_although_only_refused_traces_were_drawn(
    make_stream: Any, make_trace: Any, memory_reader: Any, control: Control
) -> None:
    bad = [make_trace(seed, last_hidden_state=NAN) for seed in (1, 2)]
    stream = make_stream(memory_reader([make_trace(0), *bad]), fresh_traces=2)
    trained: list[list[int]] = []
    for _ in range(12):
        [batch] = stream._prepare(stream.reader)
        trained += [first_tokens(batch)] if batch != "rest" else []
    assert len(trained) > 2 and {token for batch in trained for token in batch} == {0}


def test_too_many_refused_traces_pause_the_training(
    make_stream: Any, make_trace: Any, memory_reader: Any, control: Control, recorder: Any
) -> None:
    traces = [make_trace(seed, last_hidden_state=NAN) for seed in range(5)]
    stream = make_stream(memory_reader(traces))
    for _ in range(12):
        assert stream._prepare(stream.reader) == ["rest"]
    reasons = [event.reason for event in recorder.of("waiting")]
    assert reasons == ["100% of the latest traces and batches were unusable; trying again in 0 s"]
    assert stream.num_skipped_traces == 5


def test_a_resting_stream_says_so_once(
    make_stream: Any,
    make_trace: Any,
    memory_reader: Any,
    control: Control,
    recorder: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("aurora_core.learner.stream.time.monotonic", lambda: next(clock))
    stream = make_stream(memory_reader([make_trace(0)]), max_replays_per_trace=0)
    for _ in range(5):
        stream._prepare(stream.reader)
    assert [event.reason for event in recorder.of("waiting")] == [
        "every trace is learned from; waiting for new ones"
    ]


def test_every_rank_gets_an_equal_share_or_none_gets_any(
    make_stream: Any, make_trace: Any, memory_reader: Any
) -> None:
    stream = make_stream(memory_reader([make_trace(seed) for seed in range(4)]), num_ranks=2)
    assert [first_tokens(batch) for batch in stream._prepare(stream.reader)] == [[0], [1]]
    assert [first_tokens(b) for b in stream._prepare(stream.reader)] == [[2, 0], [3, 1]]
    stream = make_stream(memory_reader([make_trace(0)]), num_ranks=2)
    assert stream._prepare(stream.reader) == ["rest", "rest"]


def test_a_trace_that_did_not_fill_all_ranks_is_not_lost(
    make_stream: Any, make_trace: Any, memory_reader: Any
) -> None:
    reader = memory_reader([make_trace(0)])
    stream = make_stream(reader, num_ranks=2, max_replays_per_trace=1)
    assert stream._prepare(reader) == ["rest", "rest"]
    reader.arriving = [make_trace(1)]
    batches = stream._prepare(reader)
    assert sorted(all_first_tokens(batches)) == [0, 1]


def test_the_draft_version_is_the_mean_of_the_oldest_in_each_trace(
    make_stream: Any, make_trace: Any, memory_reader: Any
) -> None:
    traces = [make_trace(0, version=2), make_trace(1, version=5), make_trace(2, version=-1)]
    stream = make_stream(memory_reader(traces), batch_traces=3, fresh_traces=3)
    next(iter(stream))
    assert stream.draft_version == 3.5


def test_a_restored_stream_goes_on_alike(
    make_stream: Any, make_trace: Any, memory_reader: Any, control: Control
) -> None:
    traces: list[Trace] = [make_trace(seed) for seed in range(6)]
    traces.append(make_trace(6, last_hidden_state=NAN))
    one = make_stream(memory_reader(traces), max_replays_per_trace=1, fresh_traces=2)
    for _ in islice(one, 3):
        pass
    other = make_stream(memory_reader(), max_replays_per_trace=1, fresh_traces=2)
    other.load_state_dict(one.state_dict())
    rest_of_one = [first_tokens(batch) for batch in until_rest(one, control)]
    control.is_stopping = False
    assert [first_tokens(batch) for batch in until_rest(other, control)] == rest_of_one
    assert other.num_skipped_traces == one.num_skipped_traces == 1


def test_lightning_trains_on_a_batch_before_it_asks_for_the_next(
    make_stream: Any, make_trace: Any, memory_reader: Any, control: Control
) -> None:
    order: list[str] = []

    class Loud(TraceStream):
        def _take(self, reader: TraceReader) -> Any:
            order.append("fetch")
            return super()._take(reader)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            order.append("train")
            return self.layer(torch.ones(1, 1)).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    stream = make_stream(memory_reader([make_trace(seed) for seed in range(3)]))
    stream.__class__ = Loud
    lightning.Trainer(
        accelerator="cpu",
        max_steps=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), stream)
    assert order == ["fetch", "train"] * 3


def test_rewards_count_each_trace_once_however_often_it_is_replayed(
    make_stream: Any, make_trace: Any, memory_reader: Any, control: Control
) -> None:
    traces = [make_trace(seed, version=3) for seed in range(3)]
    for trace in traces:
        trace.steps.num_accepted[:2] = 4
    bad = make_trace(3, version=3, last_hidden_state=NAN)
    stream = make_stream(memory_reader([*traces, bad]), max_replays_per_trace=3)
    assert len(all_first_tokens(until_rest(stream, control))) > 3
    num_steps = len(traces[0].steps.root)
    assert stream.rewards.state_dict() == {"3": [3 * num_steps, 3 * 2 * 4]}
    control.is_stopping = False
    resumed = make_stream(memory_reader(traces))
    resumed.load_state_dict(stream.state_dict())
    until_rest(resumed, control)
    assert resumed.rewards.state_dict() == stream.rewards.state_dict()
