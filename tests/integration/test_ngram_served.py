"""N-gram drafts through the engine: from its first request on, and whole for an answer it knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from aurora_backend_torch.build import build_engine
from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.engine import Engine
from aurora_backend_torch.generation import GenerationRequest, StepOutput
from aurora_core.interfaces import ServePlan
from aurora_core.records import UNTRAINED, Needs, RequestStats, Sampling, TargetSpec
from aurora_core.target.spec import read_target_spec
from aurora_core.testing.tiny_target import make_tiny_target

PROMPT = [7, 3, 3, 8, 20, 31, 2]
NUM_TOKENS = 40
DEPTH = 3
EngineMaker = Callable[..., Engine]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetSpec:
    torch.set_num_threads(1)
    return read_target_spec(make_tiny_target(tmp_path_factory.mktemp("target")))


@pytest.fixture
def make_engine(target: TargetSpec, tmp_path: Path) -> Iterator[EngineMaker]:
    engines: list[Engine] = []

    def make(**options: object) -> Engine:
        plan = ServePlan(
            target=target,
            speculator="ngram",
            speculator_options={"min_confidence": 0.0, **options},
            plugins=("ngram",),
            needs=Needs(),
            num_speculative_tokens=DEPTH,
            versions_dir=str(tmp_path / "versions"),
            initial_version=None,
            sink="spool",
            sink_options={"path": str(tmp_path / "spool")},
            run_dir=str(tmp_path),
            seed=0,
            observed_sink="spool",
        )
        settings = {"num_threads": 1, "dtype": "float32", "max_verification_rows": 32}
        engines.append(build_engine(plan, TorchBackendOptions.model_validate(settings)))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()


def generate(
    engine: Engine, name: str, *, drafter: str = "live", record: bool = True
) -> tuple[list[int], RequestStats]:
    token_ids: list[int] = []
    done = threading.Event()

    def on_output(output: StepOutput) -> None:
        token_ids.extend(output.token_ids)
        if output.finish_reason is not None:
            done.set()

    request = GenerationRequest(
        request_id=name,
        prompt_token_ids=PROMPT,
        max_tokens=NUM_TOKENS,
        sampling=Sampling(),
        stop_token_ids=frozenset(),
        num_logprobs=None,
        drafter=drafter,
        record=record,
        request_key=name,
        tenant="",
        route="",
        arrived=time.time(),
    )
    engine.submit(request, on_output)
    assert done.wait(60)
    [stats] = [stats for stats in engine.finished(0) if stats.request_id == name]
    return token_ids, stats


@pytest.mark.parametrize("num_branches", [1, 3])
def test_an_answer_given_before_is_accepted_to_full_depth(make_engine, num_branches):
    engine = make_engine(num_branches=num_branches)
    plain, _ = generate(engine, "plain", drafter="none", record=False)
    assert len(set(plain)) > 10  # not one token over and over
    first, new = generate(engine, "first")
    second, known = generate(engine, "second")
    assert first == second == plain
    assert known.min_draft_version == known.max_draft_version == UNTRAINED
    # The first token comes from the prompt, the others in steps of four and what is left.
    assert known.num_steps == 10 < new.num_steps
    assert sum(known.accepted_per_position) == NUM_TOKENS - 1 - known.num_steps


def test_an_engine_that_starts_again_knows_what_was_answered_before(make_engine):
    before = make_engine()
    first, new = generate(before, "first")
    before.shutdown()  # writes the trace
    second, known = generate(make_engine(), "second", record=False)
    assert first == second
    assert known.num_steps == 10 < new.num_steps


@pytest.mark.parametrize(
    ("options", "record"), [({"share_traffic": False}, True), ({}, False)], ids=["own", "opted out"]
)
def test_an_answer_that_must_not_be_shared_is_not(make_engine, options, record):
    engine = make_engine(**options)
    first, new = generate(engine, "first", record=record)
    second, again = generate(engine, "second")
    assert first == second
    assert again.num_steps == new.num_steps > 10
    assert again.num_drafted == new.num_drafted
