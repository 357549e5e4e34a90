"""vLLM's schedule of draft tokens by batch size, with the recorder beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aurora_core.records import NO_DRAFTER
from aurora_core.trace_validation import validate_trace
from plugins.backend_vllm.engine_tests.reference import Reference, largest_error
from plugins.backend_vllm.engine_tests.running_engine import RunningEngine, random_prompt

SCHEDULE = [[1, 2, 3], [3, 5, 1], [6, 8, 0]]
ROUNDING = 1e-3
"""Of a logit in float32, where logits are about 10."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> RunningEngine:
    """Seven requests of rising lengths on a stock engine, so that all sizes come up."""
    folder: Path = tmp_path_factory.mktemp("schedule")
    engine = RunningEngine(
        folder, "eagle3", speculation={"num_speculative_tokens_per_batch_size": SCHEDULE}
    )
    generator = torch.Generator().manual_seed(0)
    for number in range(7):
        engine.add(f"request{number}", random_prompt(generator, 20), max_tokens=8 + 6 * number)
    engine.run()
    return engine


def test_traces_tell_what_was_drafted_at_each_size(engine: RunningEngine) -> None:
    reference = Reference(engine.target.path)
    drafted_of: list[set[int]] = []
    for name, trace in sorted(engine.traces().items()):
        validate_trace(trace)
        drafted = torch.bincount(trace.nodes.step, minlength=len(trace.steps.root))
        assert (trace.steps.version[drafted == 0] == NO_DRAFTER).all()
        assert (trace.steps.version[drafted > 0] == 1).all()
        drafted_of.append(set(drafted.tolist()))
        assert trace.token_ids[trace.prompt_len :].tolist() == engine.answers[name].token_ids
        assert reference.largest_gap(trace.token_ids.tolist(), trace.prompt_len) < ROUNDING
        assert largest_error(trace, reference, branches=2) < 1e-4
    assert drafted_of[0] == {0}, "it ended while all seven ran"
    assert drafted_of[-1] >= {0, 1, 3}
