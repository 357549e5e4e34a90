"""The whole loop on the real target: served over HTTP, learned from, swapped and compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from aurora_core.spool import SpoolOptions, open_reader
from aurora_core.target.pull import pull_target
from aurora_core.target.weights import TargetWeights
from aurora_core.trace_validation import validate_trace
from aurora_core.versions import VersionStore

pytestmark = [pytest.mark.model, pytest.mark.slow]

SETTINGS = {
    "num_speculative_tokens": "3",
    "speculator.draft_vocab_size": "2048",
    "speculator.min_confidence": "0",
    "learner.start_traces": "6",
    "learner.first_publish_steps": "3",
    "learner.publish_every_s": "8",
    "swap_policy": "always",
    "traffic.max_tokens": "32",
    "traffic.lossless_every": "3",
    "final_bench.num_prompts": "3",
}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one short run on the real model leaves behind."""
    pull_target("quickstart")
    folder = tmp_path_factory.mktemp("run")
    command = [sys.executable, "-m", "aurora_core", "run", "--requests", "36"]
    for key, value in (SETTINGS | {"run_dir": str(folder)}).items():
        command += ["--set", f"{key}={value}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=500)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    return folder


@pytest.fixture(scope="module")
def report(run_dir: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
    return loaded


def test_every_request_is_answered_and_learned_from(report: dict[str, Any]) -> None:
    assert report["requests"]["total"] == 36
    assert report["requests"]["failed"] == 0
    assert report["traces"]["kept"] >= 30 and report["traces"]["shed"] == 0
    assert report["learner"]["steps"] >= 3
    assert report["learner"]["tokens_trained"] > 0


def test_drafters_go_live_and_the_output_stays_what_it_was(report: dict[str, Any]) -> None:
    assert report["swaps"]["count"] >= 1
    assert report["lossless"]["checked"] >= 12
    assert report["lossless"]["mismatches"] == 0
    assert report["lossless"]["near_ties"] == 0
    drafted = [int(version) for version in report["lossless"]["by_version"] if int(version) >= 0]
    assert drafted, "answers of a drafter were among those compared"


def test_the_learner_improves_on_held_out_traces(run_dir: Path) -> None:
    losses = [
        version.metrics["train/loss"]
        for version in VersionStore(run_dir / "versions").list()
        if "train/loss" in version.metrics
    ]
    assert len(losses) >= 2
    assert losses[-1] < losses[0]


def test_the_traces_are_sound_and_recompute_to_the_last_bit_of_bfloat16(run_dir: Path) -> None:
    """Rows are what the target computes for the tokens, whatever they were batched with."""
    import torch

    from aurora_backend_torch.model import TargetModel
    from aurora_core.kernels import RowPlan

    reader = open_reader(SpoolOptions(path=run_dir / "spool").url)
    reader.poll()
    traces = list(reader.iterate())
    assert any(int(trace.steps.num_accepted.sum()) for trace in traces) or len(traces) > 30
    for trace in traces:
        validate_trace(trace)
    trace = max(traces, key=lambda one: len(one.nodes.token))
    model = TargetModel(
        TargetWeights(pull_target("quickstart")),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        max_context=512,
    )
    position = torch.arange(len(trace.token_ids))
    plan = RowPlan(
        position=position,
        owner=torch.zeros_like(position),
        slot=position,
        length=position + 1,
    )
    rows = model.forward(trace.token_ids, plan, [model.new_cache(len(position))], trace.aux_layers)
    committed = trace.rows.position >= 0
    at = trace.rows.position[committed]
    for name, computed in (
        ("aux_hidden_states", rows.aux_hidden),
        ("last_hidden_state", rows.last_hidden),
    ):
        stored = trace.features[name][committed]
        assert torch.equal(stored, computed[at].to(stored.dtype)), name


def test_nothing_is_left_running_or_half_written(run_dir: Path) -> None:
    marked = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(run_dir) in part for part in process.info["cmdline"] or ())
    ]
    assert marked == []
    leftovers = [path for path in run_dir.rglob("*") if path.name.endswith((".partial", ".tmp"))]
    assert leftovers == []
