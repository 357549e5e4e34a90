"""A request's trace, however the scheduler cuts the request into steps."""

from __future__ import annotations

import pytest
import torch

from aurora_backend_vllm.engine.recording import RequestRecording, StepOutcome
from aurora_backend_vllm.engine.stopping import StopConditions
from aurora_core.records import NO_DRAFTER, Sampling, Trace
from aurora_core.trace_validation import validate_trace
from plugins.backend_vllm.tests.engine_records import engine_settings

PROMPT = [11, 12, 13, 14, 15]
END = 2


@pytest.fixture
def recording() -> RequestRecording:
    return begin()


def begin(max_tokens: int = 100) -> RequestRecording:
    stops = StopConditions(max_output_tokens=max_tokens, end_token=END, stop_tokens={3})
    return RequestRecording(
        request_id="request", prompt=PROMPT, sampling=Sampling(), stops=stops, arrived=100.0
    )


def step(start: int, num_rows: int, drafts=(), chosen=(), version: int = NO_DRAFTER, **changes):
    """Return a step whose features name the position that each row had read."""
    positions = torch.arange(start, start + num_rows, dtype=torch.float32)
    values = {
        "start": start,
        "num_rows": num_rows,
        "drafts": list(drafts),
        "chosen": list(chosen),
        "version": version,
        "draft_ms": 1.0,
        "verify_ms": 2.0,
        "finished_at": 101.0 + start,
        "batch_size": 2,
        "features": {"last_hidden_state": positions[:, None].expand(-1, 4)},
    }
    return StepOutcome(**{**values, **changes})


def finished(recording: RequestRecording) -> Trace:
    trace = recording.trace(engine_settings())
    validate_trace(trace)
    return trace


def test_rows_of_accepted_drafts_are_positions_and_of_rejected_ones_nodes(recording) -> None:
    recording.take(step(0, 5, chosen=[20]))
    recording.take(step(5, 4, drafts=[21, 22, 23], chosen=[21, 30], version=7))
    trace = finished(recording)
    assert trace.token_ids.tolist() == [*PROMPT, 20, 21, 30]
    assert trace.rows.position.tolist() == [0, 1, 2, 3, 4, 5, 6, -1, -1]
    assert trace.rows.node.tolist() == [-1] * 7 + [1, 2]
    assert trace.features["last_hidden_state"][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert trace.nodes.accepted.tolist() == [True, False, False]
    assert trace.nodes.parent.tolist() == [-1, 0, 1]
    assert trace.steps.root.tolist() == [5]
    assert trace.steps.version.tolist() == [7]
    assert trace.steps.bonus_token.tolist() == [30]


def test_the_first_token_comes_from_the_prompt_and_is_no_step(recording) -> None:
    recording.take(step(0, 5, chosen=[20]))
    recording.take(step(5, 1, chosen=[21]))
    assert finished(recording).steps.root.tolist() == [5]
    assert recording.statistics(1, 0.0).num_steps == 1


def test_a_prompt_may_be_read_in_chunks(recording) -> None:
    recording.take(step(0, 2))
    recording.take(step(2, 2))
    recording.take(step(4, 1, chosen=[20]))
    trace = finished(recording)
    assert trace.rows.position.tolist() == [0, 1, 2, 3, 4]
    assert trace.token_ids.tolist() == [*PROMPT, 20]


def test_rows_of_a_cached_prefix_are_missing(recording) -> None:
    recording.take(step(3, 2, chosen=[20]))
    trace = finished(recording)
    assert trace.rows.position.tolist() == [3, 4]
    assert trace.token_ids.tolist() == [*PROMPT, 20]


def test_a_preempted_request_is_read_again_but_recorded_once(recording) -> None:
    recording.take(step(0, 5, chosen=[20]))
    recording.take(step(5, 3, drafts=[21, 22], chosen=[21, 30], version=7))
    # All over again: prompt and output are a prompt now, cut in two chunks.
    recording.take(step(0, 6))
    recording.take(step(6, 2, chosen=[31]))
    recording.take(step(8, 2, drafts=[32], chosen=[32, 33], version=8))
    trace = finished(recording)
    assert trace.token_ids.tolist() == [*PROMPT, 20, 21, 30, 31, 32, 33]
    committed = trace.rows.position >= 0
    assert trace.rows.position[committed].tolist() == list(range(10))
    told = trace.features["last_hidden_state"][committed, 0]
    assert told.tolist() == trace.rows.position[committed].tolist()
    assert trace.steps.root.tolist() == [5, 7, 8]
    assert trace.steps.version.tolist() == [7, NO_DRAFTER, 8]


def test_tokens_and_rows_beyond_the_end_are_cut_off() -> None:
    recording = begin(max_tokens=3)
    recording.take(step(0, 5, chosen=[20]))
    recording.take(step(5, 4, drafts=[21, 22, 23], chosen=[21, 22, 23, 24], version=7))
    trace = finished(recording)
    assert trace.token_ids.tolist() == [*PROMPT, 20, 21, 22]
    assert trace.finish_reason == "length"
    assert trace.rows.position.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len(trace.features["last_hidden_state"]) == 8
    assert recording.statistics(1, 0.0).num_output_tokens == 3


@pytest.mark.parametrize("last", [END, 3])
def test_a_stop_token_ends_the_request(recording, last: int) -> None:
    recording.take(step(0, 5, chosen=[20]))
    recording.take(step(5, 3, drafts=[last, 22], chosen=[last, 22, 23], version=7))
    trace = finished(recording)
    assert trace.finish_reason == "stop"
    assert trace.token_ids.tolist() == [*PROMPT, 20, last]


def test_a_request_that_did_not_end_by_itself_is_an_abort(recording) -> None:
    recording.take(step(0, 5, chosen=[20]))
    assert finished(recording).finish_reason == "abort"


def test_statistics_count_drafts_by_position(recording) -> None:
    recording.take(step(0, 5, chosen=[20], finished_at=101.0))
    recording.take(step(5, 4, drafts=[21, 22, 23], chosen=[21, 22, 30], version=7))
    recording.take(step(8, 3, drafts=[31, 32], chosen=[31, 40], version=9))
    recording.take(step(10, 1, chosen=[41], finished_at=104.5))
    stats = recording.statistics(5, 200.0)
    assert stats.accepted_per_position == (2, 1, 0)
    assert (stats.num_steps, stats.num_speculative_steps, stats.num_drafted) == (3, 2, 5)
    assert (stats.min_draft_version, stats.max_draft_version) == (7, 9)
    assert (stats.ttft_s, stats.decode_s) == (1.0, 3.5)
    assert stats.num_output_tokens == 7
    assert stats.batch_size == 2.0


def test_a_request_that_is_not_recorded_is_counted_all_the_same(recording) -> None:
    recording.take(step(0, 5, chosen=[20]))
    recording.forget_trace()
    recording.take(step(5, 2, drafts=[21], chosen=[21, 22], version=7, features={}))
    assert recording.rows == []
    assert recording.statistics(1, 0.0).num_speculative_steps == 1
