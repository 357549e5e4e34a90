"""The whole learner in this process, from a spool on disk to versions on disk."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aurora_core.errors import AuroraError, ConfigError, PluginError
from aurora_core.records import TargetSpec
from aurora_core.testing.toy_run import make_learnable_trace, make_toy_plan, write_traces
from aurora_core.testing.toy_speculator import ToySpeculator

NAN = float("nan")


def test_bad_traces_are_counted_and_training_goes_on(
    last_checkpoint: Any, learn: Any, make_plan: Any, target: TargetSpec
) -> None:
    plan = make_plan("run", max_steps=40)
    bad = [make_learnable_trace(s, target, last_hidden_state=NAN) for s in range(200, 204)]
    write_traces(Path(str(plan.sink_options["path"])), bad)
    recorder = learn(plan)
    numbers = recorder.of("progress")[-1].metrics
    assert 0 < numbers["train/skipped_traces"] <= 4
    assert recorder.events[-1].step == 40
    state = last_checkpoint(plan)["state_dict"]
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())


def test_progress_reports_the_promised_numbers(learn: Any, make_plan: Any) -> None:
    metrics = learn(make_plan("run", max_steps=10)).of("progress")[-1].metrics
    assert set(metrics) >= {
        "train/loss",
        "train/accuracy_1",
        "train/accuracy_2",
        "train/accuracy_3",
        "train/num_tokens",
        "train/tokens_per_s",
        "train/gradient_norm",
        "train/learning_rate",
        "train/matrix_learning_rate",
        "train/skipped_batches",
        "train/skipped_traces",
        "train/memory_mib",
    }
    # Ten batches of four traces, but two in the first; 19 positions of each are supervised.
    assert metrics["train/num_tokens"] == (2 + 9 * 4) * 19


def test_staleness_is_the_newest_version_minus_that_of_the_traces(
    learn: Any, target: TargetSpec, tmp_path: Path
) -> None:
    plan = make_toy_plan(tmp_path, target, max_steps=20, publish_every_steps=5)
    traces = [make_learnable_trace(seed, target, version=1) for seed in range(16)]
    write_traces(tmp_path / "spool", traces)
    metrics = learn(plan).of("progress")[-1].metrics
    # Versions 1 to 4 appear after steps 5, 10, 15 and 20; the report follows the last batch.
    assert metrics["train/staleness"] in (2.0, 3.0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"strategy": "fsdp"},
            ConfigError,
            "learner.strategy 'fsdp' splits parameters between devices, .*; use 'auto' or 'ddp'",
        ),
        (
            {"precision": "16-mixed"},
            ConfigError,
            "learner.precision '16-mixed' needs loss scaling, .*; use 'bf16-mixed' or '32-true'",
        ),
        (
            {"accelerator": "abacus"},
            ConfigError,
            "Lightning cannot train with learner.accelerator 'abacus', .*: .*abacus",
        ),
    ],
)
def test_impossible_devices_are_refused(
    learn: Any, make_plan: Any, changes: dict[str, Any], error: type[AuroraError], message: str
) -> None:
    with pytest.raises(error, match=message):
        learn(make_plan("run", max_steps=1, **changes))


def test_impossible_devices_are_refused_before_the_learner_waits_for_traces(
    learn: Any, target: TargetSpec, tmp_path: Path
) -> None:
    """A learner that has begun to wait counts as started: it would be restarted again and again."""
    plan = make_toy_plan(tmp_path, target, max_steps=1, accelerator="abacus")
    with pytest.raises(ConfigError, match="Lightning cannot train with learner"):
        learn(plan)


def test_an_unknown_speculator_is_refused(learn: Any, make_plan: Any) -> None:
    plan = dataclasses.replace(make_plan("run", max_steps=1), speculator="toi")
    with pytest.raises(PluginError, match="no plugin provides 'toi' under speculators"):
        learn(plan)


def test_a_speculator_without_gradients_needs_no_learner(
    learn: Any, make_plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToySpeculator, "trainable", False)
    with pytest.raises(ConfigError, match="'toy' is not trained by gradients: it needs no learner"):
        learn(make_plan("run", max_steps=1))


@pytest.mark.skipif(sys.platform != "linux", reason="other allocators than glibc's are not set up")
def test_memory_of_freed_tensors_is_returned_although_small_ones_follow_them() -> None:
    program = """
import psutil, torch
from aurora_core.learner.process import return_freed_memory
return_freed_memory()
kept, resident = [], []
for _ in range(40):
    gradient = torch.ones(5 << 20)                     # 20 MiB
    kept.append(torch.ones(1 << 16))                   # 256 KiB
    del gradient
    kept.append(torch.ones(1 << 16))
    resident.append(psutil.Process().memory_info().rss >> 20)
print(resident[-1] - resident[1])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(done.stdout) < 100


def test_no_further_rank_is_meant_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    from aurora_core.learner.ranks import is_first_process

    for name in ("RANK", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert is_first_process()
    monkeypatch.setitem(os.environ, "LOCAL_RANK", "0")
    assert is_first_process()
    monkeypatch.setitem(os.environ, "LOCAL_RANK", "1")
    assert not is_first_process()
