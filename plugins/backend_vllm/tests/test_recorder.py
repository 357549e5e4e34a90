"""The recorder around a runner that behaves as vLLM's does, without a model."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from aurora_backend_vllm.engine.live_drafter import LiveDrafter
from aurora_backend_vllm.engine.recorder import StepRecorder
from aurora_core.interfaces import TraceWriter
from aurora_core.records import NO_DRAFTER, SinkStats, Trace
from aurora_core.trace_validation import validate_trace
from plugins.backend_vllm.tests.engine_records import VOCABULARY, engine_settings


class KeptTraces(TraceWriter):
    """A sink's end that keeps everything."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []

    def put(self, trace: Trace) -> bool:
        self.traces.append(trace)
        return True

    def stats(self) -> SinkStats:
        return SinkStats(num_traces=0, num_bytes=0, kept=len(self.traces))

    def close(self) -> None: ...


class FakeRunner:
    """One step at a time: the target's next token is the last one and 1; drafts are as told."""

    def __init__(self) -> None:
        self.max_model_len = 64
        self.speculative_config = SimpleNamespace(draft_sample_method="greedy")
        self.input_batch = SimpleNamespace(
            req_ids=[], num_reqs=0, num_computed_tokens_cpu=np.zeros(8, dtype=np.int32)
        )
        self.execute_model_state: Any = None
        self.num_proposals = 0
        self.zeros_only = False
        self.tokens: dict[str, list[int]] = {}
        self.logits = torch.zeros(0)
        self._drafts: Any = []

    def execute_model(self, scheduler_output: Any) -> None:
        for new in scheduler_output.scheduled_new_reqs:
            self.tokens[new.req_id] = list(new.prompt_token_ids)
        counts = scheduler_output.num_scheduled_tokens
        self.input_batch.req_ids = list(counts)
        self.input_batch.num_reqs = len(counts)
        for index, request_id in enumerate(counts):
            self.input_batch.num_computed_tokens_cpu[index] = scheduler_output.starts[request_id]
        if not counts:
            return
        drafts = [scheduler_output.drafts.get(request_id, []) for request_id in counts]
        num_rows = sum(counts.values())
        num_logits = sum(len(one) + 1 for one in drafts)
        rows = torch.arange(num_rows, dtype=torch.float32)[:, None]
        self.logits = torch.arange(num_logits * VOCABULARY).float().view(num_logits, VOCABULARY)
        self.execute_model_state = SimpleNamespace(
            scheduler_output=scheduler_output,
            logits=self.logits.clone(),
            spec_decode_metadata=SimpleNamespace(
                draft_token_ids=torch.tensor([*chain.from_iterable(drafts)]).long(),
                num_draft_tokens=[len(one) for one in drafts],
            ),
            hidden_states=rows.expand(-1, 4),
            aux_hidden_states=[rows.expand(-1, 4) + layer for layer in range(3)],
        )

    def sample_tokens(self, grammar_output: Any) -> Any:
        state, self.execute_model_state = self.execute_model_state, None
        if state is None:
            return "nothing"
        state.logits.fill_(float("-inf"))  # as sampling parameters do, in place
        sampled = []
        for request_id in self.input_batch.req_ids:
            tokens = self.tokens[request_id]
            chosen = []
            for draft in [*state.scheduler_output.drafts.get(request_id, []), None]:
                chosen.append((tokens[-1] + 1) % VOCABULARY)
                tokens.append(chosen[-1])
                if draft != chosen[-1]:
                    break
            sampled.append(chosen)
        if self.zeros_only:
            self._drafts = [[0, 0] for _ in self.input_batch.req_ids]
        else:
            self._drafts = self.propose_draft_token_ids(state.scheduler_output)
        return SimpleNamespace(sampled_token_ids=sampled)

    def propose_draft_token_ids(self, scheduler_output: Any) -> list[list[int]]:
        self.num_proposals += 1
        return [[self.tokens[one][-1] + 1, 0] for one in self.input_batch.req_ids]

    def take_draft_token_ids(self) -> Any:
        return SimpleNamespace(req_ids=list(self.input_batch.req_ids), draft_token_ids=self._drafts)


class Engine:
    """A scheduler that runs every request it was given, whole prompts first."""

    def __init__(self, *, version: int = 5, **settings: Any) -> None:
        self.runner, self.writer = FakeRunner(), KeptTraces()
        self.live = LiveDrafter(version, "sum")
        self.recorder = StepRecorder(
            self.runner, engine_settings(**settings), self.live, self.writer
        )
        self.recorder.install()
        self.drafts: dict[str, list[int]] = {}
        self._new: list[Any] = []
        self._running: list[str] = []
        self._ended: set[str] = set()

    def add(self, request_id: str, prompt=(10, 11, 12), **parameters: Any) -> None:
        self._new.append(
            SimpleNamespace(
                req_id=request_id,
                prompt_token_ids=list(prompt),
                sampling_params=sampling_params(**parameters),
            )
        )

    def end(self, request_id: str) -> None:
        self._running.remove(request_id)
        self._ended.add(request_id)

    def step(self) -> Any:
        tokens = self.runner.tokens
        counts, starts = {}, {}
        for request_id in self._running:
            counts[request_id] = 1 + len(self.drafts.get(request_id, []))
            starts[request_id] = len(tokens[request_id]) - 1
        for new in self._new:
            counts[new.req_id], starts[new.req_id] = len(new.prompt_token_ids), 0
        output = SimpleNamespace(
            finished_req_ids=self._ended,
            scheduled_new_reqs=self._new,
            num_scheduled_tokens=counts,
            starts=starts,
            drafts=self.drafts,
        )
        self._running += [new.req_id for new in self._new]
        self._new, self._ended = [], set()
        self.runner.execute_model(output)
        sampled = self.runner.sample_tokens(None)
        if not counts:
            return sampled
        taken = self.runner.take_draft_token_ids()
        self.drafts = dict(zip(taken.req_ids, taken.draft_token_ids, strict=True))
        return sampled


def sampling_params(**changes: Any) -> Any:
    values = {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": None,
        "max_tokens": 20,
        "eos_token_id": None,
        "stop_token_ids": [],
        "extra_args": None,
        "repetition_penalty": 1.0,
    }
    return SimpleNamespace(**{**values, **changes})


def test_what_a_request_did_is_in_its_trace() -> None:
    engine = Engine()
    engine.add("a")
    for _ in range(3):
        engine.step()
    engine.end("a")
    engine.step()
    (trace,) = engine.writer.traces
    validate_trace(trace)
    # Of each two drafts the first is right: every step commits it and the target's own.
    assert trace.token_ids.tolist() == [10, 11, 12, 13, 14, 15, 16, 17]
    assert trace.steps.num_accepted.tolist() == [1, 1]
    assert trace.steps.version.tolist() == [5, 5]
    assert trace.nodes.token.tolist() == [14, 0, 16, 0]
    assert trace.aux_layers == (1, 2, 3)
    (stats,) = engine.recorder.finished(-1)
    assert (stats.num_drafted, stats.accepted_per_position) == (4, (2, 0))


def test_logsumexp_is_that_of_the_target_before_sampling_changed_it() -> None:
    engine = Engine()
    engine.add("a")
    engine.step()
    engine.step()
    verified = engine.runner.logits.logsumexp(-1)
    engine.end("a")
    engine.step()
    (trace,) = engine.writer.traces
    told = trace.features["target_logsumexp"]
    assert torch.isnan(told[:2]).all(), "nobody needs the logits within a prompt"
    assert torch.equal(told[3:], verified)


def test_rows_belong_to_their_own_request() -> None:
    engine = Engine()
    engine.add("a")
    engine.add("b", prompt=(30, 31))
    engine.step()
    engine.step()
    engine.end("a")
    engine.end("b")
    engine.step()
    first, second = (
        engine.writer.traces
        if engine.writer.traces[0].trace_id == "a"
        else reversed(engine.writer.traces)
    )
    # The second step's rows are three of `a`, then three of `b`.
    assert first.features["last_hidden_state"][-3:, 0].tolist() == [0, 1, 2]
    assert second.features["last_hidden_state"][-3:, 0].tolist() == [3, 4, 5]
    assert second.features["aux_hidden_states"][-1].tolist() == [5] * 4 + [6] * 4 + [7] * 4


def test_without_a_live_drafter_nothing_is_drafted() -> None:
    engine = Engine(version=NO_DRAFTER)
    engine.add("a")
    for _ in range(3):
        engine.step()
    assert engine.runner.num_proposals == 0
    assert engine.drafts == {"a": []}
    engine.end("a")
    engine.step()
    assert engine.writer.traces[0].steps.version.tolist() == [NO_DRAFTER, NO_DRAFTER]


def test_a_request_without_drafts_runs_beside_others_with() -> None:
    engine = Engine()
    engine.add("plain", extra_args={"aurora_drafter": "none"})
    engine.add("b")
    engine.step()
    assert engine.drafts["plain"] == []
    assert engine.drafts["b"]
    engine.step()
    engine.end("plain")
    engine.step()
    (stats,) = engine.recorder.finished(-1)
    assert (stats.num_steps, stats.num_drafted, stats.max_draft_version) == (1, 0, NO_DRAFTER)


def test_the_drafter_rests_when_nobody_in_the_batch_wants_it() -> None:
    engine = Engine()
    engine.add("plain", extra_args={"aurora_drafter": "none"})
    engine.step()
    assert engine.runner.num_proposals == 0


def test_a_step_after_a_swap_verifies_drafts_of_the_version_that_made_them() -> None:
    engine = Engine(version=5)
    engine.add("a")
    engine.step()
    engine.live.version = 6
    engine.step()
    engine.step()
    engine.end("a")
    engine.step()
    assert engine.writer.traces[0].steps.version.tolist() == [5, 6]
    (stats,) = engine.recorder.finished(-1)
    assert (stats.min_draft_version, stats.max_draft_version) == (5, 6)


def test_zeros_that_stand_in_for_drafts_are_not_verified() -> None:
    engine = Engine()
    engine.runner.zeros_only = True
    engine.add("a")
    engine.step()
    assert engine.drafts == {"a": []}


@pytest.mark.parametrize(
    "changes",
    [
        {"extra_args": {"aurora_record": 0}},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {3: 1.0}},
    ],
)
def test_requests_that_leave_no_trace(changes: dict[str, Any]) -> None:
    engine = Engine()
    engine.add("a", **changes)
    engine.step()
    engine.end("a")
    engine.step()
    assert engine.writer.traces == []
    assert len(engine.recorder.finished(-1)) == 1


def test_a_sampling_rate_of_the_sink_is_kept_before_anything_is_copied() -> None:
    engine = Engine(sink_options={"sampling_rate": 0.0})
    engine.add("a")
    engine.step()
    engine.end("a")
    engine.step()
    assert engine.writer.traces == []


def test_a_request_that_grows_too_long_leaves_no_trace() -> None:
    engine = Engine(max_trace_tokens=4)
    engine.add("a")
    engine.step()
    engine.step()
    engine.end("a")
    engine.step()
    assert engine.writer.traces == []
    assert engine.recorder.left_out["too_long"] == 1


def test_labels_and_arrival_come_with_the_request() -> None:
    engine = Engine()
    extra = {"aurora_tenant": "them", "aurora_route": "sql", "aurora_arrived": 12.5}
    engine.add("a", extra_args=extra)
    engine.step()
    engine.recorder.finish_all()
    (trace,) = engine.writer.traces
    assert (trace.tenant, trace.route, trace.created) == ("them", "sql", 12.5)
    assert trace.finish_reason == "abort"


@pytest.mark.parametrize(
    ("temperature", "method", "rule"),
    [(0.0, "greedy", "greedy"), (0.7, "greedy", "point_mass"), (0.7, "gumbel", "rejection")],
)
def test_the_rule_of_verification_is_told(temperature: float, method: str, rule: str) -> None:
    engine = Engine()
    engine.runner.speculative_config.draft_sample_method = method
    engine.add("a", temperature=temperature, top_k=-1)
    engine.step()
    engine.recorder.finish_all()
    sampling = engine.writer.traces[0].sampling
    assert (sampling.rule, sampling.top_k) == (rule, 0)


def test_a_step_without_rows_passes_through() -> None:
    engine = Engine()
    assert engine.step() == "nothing"
