"""Traces of a stock engine under everything that a scheduler does to requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from aurora_core.records import NO_DRAFTER, RequestStats, Trace
from aurora_core.trace_validation import validate_trace
from plugins.backend_vllm.engine_tests.reference import Reference, largest_error
from plugins.backend_vllm.engine_tests.running_engine import (
    NUM_SPECULATIVE_TOKENS,
    Answer,
    RunningEngine,
    random_prompt,
)

NUM_REQUESTS = 208
TOLERANCE = 1e-4
ROUNDING = 1e-3
"""Of a logit in float32, where logits are about 10."""


@dataclass
class Outcome:
    """All that is left of a served crowd of requests."""

    answers: dict[str, Answer]
    traces: dict[str, Trace]
    statistics: dict[str, RequestStats]
    num_preempted: int
    reference: Reference
    recording_share: float


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Serve requests of mixed lengths with too little memory, and swap drafters meanwhile."""
    engine = RunningEngine(
        tmp_path_factory.mktemp("eagle3"),
        "eagle3",
        max_num_batched_tokens=64,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        num_gpu_blocks_override=22,
    )
    generator = torch.Generator().manual_seed(0)
    shared = random_prompt(generator, 70)
    for number in range(NUM_REQUESTS):
        length = int(torch.randint(2, 150, (1,), generator=generator))
        prompt = random_prompt(generator, length)
        if number % 4 == 0:
            prompt = [*shared, *prompt[:20]]
        parameters = {"max_tokens": 4 + number % 29}
        if number % 7 == 3:
            parameters |= {"temperature": 0.8, "top_p": 0.9}
        if number % 5 == 1:
            parameters |= {"ignore_eos": False, "stop_token_ids": [7, 80, 150, 200, 250]}
        engine.add(name_of(number), prompt, **parameters)
    drafts = [engine.publish(seed=seed) for seed in (2, 3)]
    scheduler = engine.engine.engine_core.engine_core.scheduler
    num_preempted = 0

    def between(number: int) -> None:
        nonlocal num_preempted
        num_preempted = max(
            num_preempted, sum(request.num_preemptions for request in scheduler.requests.values())
        )
        if number % 25 == 0:
            engine.abort(name_of(next(running(scheduler))))
        if number in (60, 120):
            receipt = engine.swap(drafts[number // 60 - 1])
            assert "refused" not in receipt, receipt
        if number in (180, 200):
            engine.swap(None if number == 180 else engine.store.read(3))

    engine.run(between)
    statistics = {one.request_id.rpartition("-")[0]: one for one in engine.statistics()}
    recorder = engine.worker._aurora_recorder
    yield Outcome(
        answers=engine.answers,
        traces=engine.traces(),
        statistics=statistics,
        num_preempted=num_preempted,
        reference=Reference(engine.target.path),
        recording_share=recorder.recording_s / recorder.step_s,
    )


def name_of(number: int) -> str:
    return f"request{number}"


def running(scheduler) -> Iterator[int]:
    for request in scheduler.running:
        yield int(request.request_id.rpartition("-")[0].removeprefix("request"))


def test_the_crowd_was_what_it_should_be(outcome: Outcome) -> None:
    """Otherwise the other tests would not have tested what they say."""
    traces = outcome.traces.values()
    assert outcome.num_preempted > 0
    assert sum(trace.finish_reason == "abort" for trace in traces) > 2
    assert sum(trace.finish_reason == "stop" for trace in traces) > 5
    assert {int(v) for trace in traces for v in trace.steps.version} == {NO_DRAFTER, 1, 2, 3}
    assert sum(int(trace.steps.num_accepted.sum()) for trace in traces) > 5
    assert any(int(trace.rows.position[0]) > 0 for trace in traces), "no prefix was cached"


def test_every_request_left_one_sound_trace(outcome: Outcome) -> None:
    begun = {name for name, answer in outcome.answers.items() if answer.token_ids}
    assert begun == outcome.traces.keys()
    assert len(begun) > 190
    for trace in outcome.traces.values():
        validate_trace(trace)


def test_traces_hold_the_tokens_that_clients_got(outcome: Outcome) -> None:
    for name, trace in outcome.traces.items():
        answer = outcome.answers[name]
        told = trace.token_ids.tolist()
        assert told[: trace.prompt_len] == answer.prompt, name
        if trace.finish_reason == "abort":
            # A client that goes away does not get the step that was under way.
            assert told[trace.prompt_len :][: len(answer.token_ids)] == answer.token_ids, name
        else:
            assert told[trace.prompt_len :] == answer.token_ids, name
            assert trace.finish_reason == answer.finish_reason, name


def test_accepted_counts_are_vllms_own(outcome: Outcome) -> None:
    for name, trace in outcome.traces.items():
        if trace.finish_reason == "abort":
            continue
        answer = outcome.answers[name]
        drafted = torch.bincount(trace.nodes.step, minlength=len(trace.steps.root))
        speculative = drafted > 0
        assert drafted[speculative].tolist() == answer.per_step_drafted, name
        assert trace.steps.num_accepted[speculative].tolist() == answer.per_step_accepted, name
        stats = outcome.statistics[name]
        assert stats.num_drafted == sum(answer.per_step_drafted)
        assert stats.num_output_tokens == len(answer.token_ids)


def test_no_row_is_missing_but_those_of_cached_prefixes(outcome: Outcome) -> None:
    for name, trace in outcome.traces.items():
        positions = trace.rows.position[trace.rows.position >= 0].tolist()
        assert positions == list(range(positions[0], positions[0] + len(positions))), name
        assert positions[0] % 32 == 0, "vLLM caches whole blocks"
        # The last token is read only if a step came after it.
        assert positions[-1] >= len(trace.token_ids) - 2, name
        rejected = (~trace.nodes.accepted).nonzero().flatten().tolist()
        told = trace.rows.node[trace.rows.node >= 0].tolist()
        assert told == rejected, name


def test_features_are_those_of_the_reference(outcome: Outcome) -> None:
    errors = {
        name: largest_error(trace, outcome.reference, branches=2)
        for name, trace in outcome.traces.items()
    }
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] < TOLERANCE, worst


def test_every_supervised_row_has_its_logsumexp(outcome: Outcome) -> None:
    for name, trace in outcome.traces.items():
        supervised = (trace.rows.position >= trace.prompt_len - 1) | (trace.rows.node >= 0)
        told = trace.features["target_logsumexp"]
        assert torch.isfinite(told[supervised]).all(), name


def test_greedy_answers_are_the_targets_own(outcome: Outcome) -> None:
    greedy = [trace for trace in outcome.traces.values() if trace.sampling.temperature == 0]
    assert len(greedy) > 150
    for trace in greedy:
        gap = outcome.reference.largest_gap(trace.token_ids.tolist(), trace.prompt_len)
        assert gap < ROUNDING, trace.trace_id


def test_sampled_requests_tell_their_parameters(outcome: Outcome) -> None:
    trace = outcome.traces[name_of(3)]
    assert trace.sampling.rule == "point_mass"
    assert trace.sampling.temperature == pytest.approx(0.8)
    assert trace.sampling.top_p == pytest.approx(0.9)


def test_drafts_are_no_longer_than_asked_for(outcome: Outcome) -> None:
    deepest = max(
        int(trace.nodes.depth.max()) for trace in outcome.traces.values() if len(trace.nodes.depth)
    )
    assert deepest == NUM_SPECULATIVE_TOKENS
