"""Medusa and EAGLE-1 through the recorder and the swap; one engine for each, in turn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SERVE = """
import sys
from pathlib import Path
import torch
from aurora_core.trace_validation import validate_trace
from plugins.backend_vllm.engine_tests.reference import Reference, largest_error
from plugins.backend_vllm.engine_tests.running_engine import RunningEngine, random_prompt

if __name__ == "__main__":
    folder, method = Path(sys.argv[1]), sys.argv[2]
    engine = RunningEngine(folder, method, max_num_batched_tokens=64)
    generator = torch.Generator().manual_seed(0)
    for number in range(24):
        engine.add(f"request{number}", random_prompt(generator, 5 + 4 * number), max_tokens=12)
    second = engine.publish(seed=2)

    def between(number):
        if number == 10:
            receipt = engine.swap(second)
            assert receipt.get("checksum") == second.checksum, receipt

    engine.run(between)
    reference = Reference(engine.target.path)
    traces = engine.traces()
    assert traces.keys() == engine.answers.keys()
    versions = set()
    for name, trace in traces.items():
        validate_trace(trace)
        answer = engine.answers[name]
        assert trace.token_ids.tolist() == answer.prompt + answer.token_ids, name
        drafted = torch.bincount(trace.nodes.step, minlength=len(trace.steps.root))
        assert drafted[drafted > 0].tolist() == answer.per_step_drafted, name
        assert trace.steps.num_accepted[drafted > 0].tolist() == answer.per_step_accepted, name
        error = largest_error(trace, reference, branches=2)
        assert error < 1e-4, (name, error)
        gap = reference.largest_gap(trace.token_ids.tolist(), trace.prompt_len)
        assert gap < 1e-3, (name, gap)
        versions |= {int(version) for version in trace.steps.version}
    assert versions == {1, 2}, versions
    print("sound")
"""


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_traces_and_swaps(tmp_path: Path, method: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path), method],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.stdout.rstrip().endswith("sound"), finished.stderr[-3000:]
