"""Requests that run through the recorder as SGLang's scheduler would show them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from aurora_backend_sglang.engine.recorder import Recorder
from aurora_backend_sglang.engine.request_facts import finish_reason_of
from aurora_core.interfaces import TraceWriter
from aurora_core.records import NO_DRAFTER, SinkStats, Trace
from aurora_core.trace_validation import validate_trace
from plugins.backend_sglang.tests.engine_records import HIDDEN, VOCABULARY, engine_settings


class ListWriter(TraceWriter):
    """Keeps what is handed over."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []

    def put(self, trace: Trace) -> bool:
        validate_trace(trace)
        self.traces.append(trace)
        return True

    def stats(self) -> SinkStats:
        return SinkStats(num_traces=0, num_bytes=0, kept=len(self.traces))

    def close(self) -> None: ...


class Request(SimpleNamespace):
    """What the recorder reads of SGLang's `Req`."""

    def finished(self) -> bool:
        return self.finished_reason is not None

    @property
    def output_ids_through_stop(self) -> list[int]:
        return self.output_ids[: self.finished_len]


def request(prompt: list[int], **changes: Any) -> Request:
    parameters = {
        "temperature": 1.0,
        "top_k": 1,
        "top_p": 1.0,
        "sampling_seed": None,
        "custom_params": None,
    }
    values = {
        "rid": "request-1",
        "origin_input_ids": prompt,
        "output_ids": [],
        "finished_reason": None,
        "finished_len": None,
        "is_retracted": False,
        "time_stats": SimpleNamespace(),
        "sampling_params": SimpleNamespace(**{**parameters, **changes.pop("sampling", {})}),
    }
    return Request(**{**values, **changes})


def rows(tokens: list[int]) -> Any:
    """Return the output of a pass whose rows tell which token each of them had read."""
    column = torch.tensor(tokens, dtype=torch.float32)[:, None]
    return SimpleNamespace(
        hidden_states=column.expand(-1, 3 * HIDDEN).clone(),
        last_hidden_states=column.expand(-1, HIDDEN).clone(),
        next_token_logits=column.expand(-1, VOCABULARY).clone(),
    )


def read_prompt(recorder: Recorder, one: Request, *, cached: int = 0, chunk: int = 0) -> None:
    prompt = one.origin_input_ids
    for start in range(cached, len(prompt), chunk or len(prompt)):
        tokens = prompt[start : start + (chunk or len(prompt))]
        batch = SimpleNamespace(reqs=[one], prefix_lens=[start], extend_lens=[len(tokens)])
        output = rows(tokens)
        output.next_token_logits = output.next_token_logits[-1:]
        recorder.prefill_read(batch, output)


def verify(
    recorder: Recorder,
    one: Request,
    root: int,
    tokens: list[int],
    first_child: list[int],
    next_sibling: list[int],
    accepted: list[int],
    bonus: int,
) -> None:
    """Run one verification pass; `accepted` are SGLang's numbers of nodes, the root's included."""
    output = rows(tokens)
    features = recorder.verification_features(output)
    positions = torch.full((len(tokens),), root)
    predicted = torch.zeros(len(tokens), dtype=torch.int32)
    predicted[accepted[-1]] = bonus
    padded = [*accepted, *[-1] * (len(tokens) - len(accepted))]
    recorder.step_verified(
        SimpleNamespace(
            draft_token=torch.tensor(tokens),
            positions=positions,
            retrieve_next_token=torch.tensor([first_child]),
            retrieve_next_sibling=torch.tensor([next_sibling]),
        ),
        SimpleNamespace(reqs=[one]),
        features,
        (predicted, torch.tensor([len(accepted)]), torch.tensor([padded])),
    )


def commit(recorder: Recorder, one: Request, tokens: list[int]) -> None:
    before = len(one.output_ids)
    one.output_ids += tokens
    recorder.step_committed(one, before)


@pytest.fixture
def writer() -> ListWriter:
    return ListWriter()


@pytest.fixture
def recorder(writer: ListWriter) -> Recorder:
    settings = engine_settings(initial_version=4, initial_checksum="c")
    return Recorder(settings, writer, rule="greedy_always")


def first_token(recorder: Recorder, one: Request, token: int) -> None:
    one.output_ids.append(token)
    recorder.first_token(one)


def finish(recorder: Recorder, one: Request, kind: str = "FINISH_LENGTH") -> None:
    one.finished_reason = kind
    recorder.request_finished(one, finish_reason_of([kind, "object"]))


def tokens_of(feature: Tensor) -> list[int]:
    return [int(value) for value in feature[:, 0]]


def test_a_chain_with_rejected_tokens_becomes_a_whole_trace(recorder, writer) -> None:
    one = request([11, 12, 13])
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    verify(recorder, one, 3, [20, 21, 30, 31], [1, 2, 3, -1], [-1] * 4, [0, 1], 22)
    commit(recorder, one, [21, 22])
    verify(recorder, one, 5, [22, 40, 41, 42], [1, 2, 3, -1], [-1] * 4, [0], 23)
    commit(recorder, one, [23])
    finish(recorder, one)
    (trace,) = writer.traces
    assert trace.token_ids.tolist() == [11, 12, 13, 20, 21, 22, 23]
    assert trace.prompt_len == 3
    assert trace.steps.root.tolist() == [3, 5]
    assert trace.steps.num_accepted.tolist() == [1, 0]
    assert trace.steps.bonus_token.tolist() == [22, 23]
    assert trace.steps.version.tolist() == [4, 4]
    assert trace.nodes.token.tolist() == [21, 30, 31, 40, 41, 42]
    assert trace.nodes.parent.tolist() == [-1, 0, 1, -1, 3, 4]
    assert trace.nodes.accepted.tolist() == [True, False, False, False, False, False]
    # Each row knows its place: the token it had read is the one that stands there.
    read = [
        int(trace.token_ids[position]) if position >= 0 else int(trace.nodes.token[node])
        for position, node in zip(trace.rows.position, trace.rows.node, strict=True)
    ]
    assert tokens_of(trace.features["aux_hidden_states"]) == read
    assert tokens_of(trace.features["last_hidden_state"]) == read
    assert sorted(trace.rows.position[trace.rows.position >= 0].tolist()) == [0, 1, 2, 3, 4, 5]
    logsumexp = trace.features["target_logsumexp"]
    assert torch.isnan(logsumexp).tolist() == [True, True, *[False] * (len(read) - 2)]
    (stats,) = recorder.finished_after(0)
    assert (stats.num_steps, stats.num_drafted) == (2, 6)
    assert stats.accepted_per_position == (1, 0, 0)
    assert (stats.min_draft_version, stats.max_draft_version) == (4, 4)


def test_a_tree_keeps_its_parents_and_the_rows_of_rejected_branches(recorder, writer) -> None:
    one = request([11, 12])
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    #  20 -> 5 -> 7, 8
    #     -> 6
    verify(
        recorder,
        one,
        2,
        [20, 5, 6, 7, 8],
        [1, 3, -1, -1, -1],
        [-1, 2, -1, 4, -1],
        [0, 1, 4],
        9,
    )
    commit(recorder, one, [5, 8, 9])
    finish(recorder, one)
    (trace,) = writer.traces
    assert trace.token_ids.tolist() == [11, 12, 20, 5, 8, 9]
    assert trace.nodes.token.tolist() == [5, 6, 7, 8]
    assert trace.nodes.parent.tolist() == [-1, -1, 0, 0]
    assert trace.nodes.accepted.tolist() == [True, False, False, True]
    rejected = trace.rows.node[trace.rows.node >= 0].tolist()
    assert rejected == [1, 2]
    by_node = dict(
        zip(
            trace.rows.node.tolist(),
            tokens_of(trace.features["aux_hidden_states"]),
            strict=True,
        )
    )
    assert (by_node[1], by_node[2]) == (6, 7)


def test_rows_from_the_prefix_cache_are_missing_and_the_map_says_so(recorder, writer) -> None:
    one = request([11, 12, 13, 14])
    read_prompt(recorder, one, cached=3)
    first_token(recorder, one, 20)
    finish(recorder, one)
    assert writer.traces[0].rows.position.tolist() == [3]
    assert tokens_of(writer.traces[0].features["aux_hidden_states"]) == [14]


def test_a_prompt_read_in_chunks_has_every_row_once(recorder, writer) -> None:
    one = request([11, 12, 13, 14, 15])
    read_prompt(recorder, one, chunk=2)
    first_token(recorder, one, 20)
    finish(recorder, one)
    trace = writer.traces[0]
    assert trace.rows.position.tolist() == [0, 1, 2, 3, 4]
    assert tokens_of(trace.features["last_hidden_state"]) == [11, 12, 13, 14, 15]


def test_a_request_that_is_read_again_keeps_its_rows(recorder, writer) -> None:
    one = request([11, 12])
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    verify(recorder, one, 2, [20, 30], [1, -1], [-1, -1], [0], 21)
    commit(recorder, one, [21])
    again = [11, 12, 20, 21]
    batch = SimpleNamespace(reqs=[one], prefix_lens=[0], extend_lens=[4])
    output = rows(again)
    output.next_token_logits = output.next_token_logits[-1:]
    recorder.prefill_read(batch, output)
    first_token(recorder, one, 22)
    finish(recorder, one)
    trace = writer.traces[0]
    positions = trace.rows.position[trace.rows.position >= 0].tolist()
    assert positions == [0, 1, 2, 3], "one row for each, whichever pass it came from"


def test_what_a_stop_cut_off_is_not_in_the_trace(recorder, writer) -> None:
    one = request([11, 12])
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    verify(recorder, one, 2, [20, 21, 22, 23], [1, 2, 3, -1], [-1] * 4, [0, 1, 2, 3], 24)
    one.finished_reason, one.finished_len = "FINISH_MATCHED_TOKEN", 2
    commit(recorder, one, [21, 22, 23, 24])
    finish(recorder, one, "FINISH_MATCHED_TOKEN")
    trace = writer.traces[0]
    assert trace.token_ids.tolist() == [11, 12, 20, 21]
    assert trace.finish_reason == "stop"
    assert max(trace.rows.position.tolist()) == 3


def test_the_version_of_a_step_is_the_one_that_drafted(recorder, writer) -> None:
    one = request([11, 12])
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    verify(recorder, one, 2, [20, 30], [1, -1], [-1, -1], [0], 21)
    recorder.version = 5  # the swap came while the pass was on its way
    commit(recorder, one, [21])
    verify(recorder, one, 3, [21, 31], [1, -1], [-1, -1], [0], 22)
    commit(recorder, one, [22])
    finish(recorder, one)
    assert writer.traces[0].steps.version.tolist() == [4, 5]
    (stats,) = recorder.finished_after(0)
    assert (stats.min_draft_version, stats.max_draft_version) == (4, 5)


def test_a_step_without_drafts_is_a_plain_one(recorder, writer) -> None:
    one = request([11, 12])
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    verify(recorder, one, 2, [20], [-1], [-1], [0], 21)
    commit(recorder, one, [21])
    finish(recorder, one)
    assert writer.traces[0].steps.version.tolist() == [NO_DRAFTER]
    (stats,) = recorder.finished_after(0)
    assert (stats.num_steps, stats.num_speculative_steps, stats.num_drafted) == (1, 0, 0)


def test_a_pass_that_came_too_late_is_thrown_away(recorder, writer) -> None:
    one = request([11, 12])
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    verify(recorder, one, 2, [20, 30], [1, -1], [-1, -1], [0], 21)
    verify(recorder, one, 3, [21, 31], [1, -1], [-1, -1], [0], 22)
    commit(recorder, one, [21])
    recorder.step_discarded(one)
    finish(recorder, one)
    assert writer.traces[0].steps.root.tolist() == [2]


def test_an_aborted_request_says_so(recorder, writer) -> None:
    one = request([11, 12])
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    finish(recorder, one, "FINISH_ABORT")
    assert writer.traces[0].finish_reason == "abort"


@pytest.mark.parametrize(
    ("changes", "shed"),
    [
        ({"sampling": {"custom_params": {"aurora": {"record": False}}}}, {}),
        ({"origin_input_ids": [1] * 5000}, {}),
    ],
)
def test_some_requests_leave_statistics_and_no_trace(recorder, writer, changes, shed) -> None:
    one = request(changes.pop("origin_input_ids", [11, 12]), **changes)
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    finish(recorder, one)
    assert writer.traces == []
    assert len(recorder.finished_after(0)) == 1
    assert recorder.sink_stats().shed == shed


def test_tokens_taken_back_by_a_grammar_cost_the_trace(recorder, writer) -> None:
    one = request([11, 12])
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    verify(recorder, one, 2, [20, 21, 22], [1, 2, -1], [-1] * 3, [0, 1, 2], 23)
    commit(recorder, one, [21])
    finish(recorder, one)
    assert writer.traces == []
    assert recorder.sink_stats().shed == {"shortened": 1}


def test_health_checks_are_no_requests(recorder, writer) -> None:
    one = request([11, 12], rid="HEALTH_CHECK_1")
    read_prompt(recorder, one)
    finish(recorder, one)
    assert recorder.finished_after(0) == []


def test_labels_and_sampling_are_those_of_the_request(recorder, writer) -> None:
    wishes = {"aurora": {"tenant": "a", "route": "b"}}
    sampling = {"temperature": 0.7, "top_k": 1 << 30, "top_p": 0.9, "custom_params": wishes}
    one = request([11, 12], sampling=sampling)
    read_prompt(recorder, one)
    first_token(recorder, one, 20)
    finish(recorder, one)
    trace = writer.traces[0]
    assert (trace.tenant, trace.route) == ("a", "b")
    assert (trace.sampling.temperature, trace.sampling.top_p) == (0.7, 0.9)
    assert (trace.sampling.top_k, trace.sampling.rule) == (0, "greedy_always")


def test_statistics_are_given_from_a_number_on_however_often(recorder, writer) -> None:
    for _ in range(3):
        one = request([11])
        read_prompt(recorder, one)
        finish(recorder, one)
    assert [one.sequence for one in recorder.finished_after(1)] == [2, 3]
    assert [one.sequence for one in recorder.finished_after(0)] == [1, 2, 3]
