"""The whole learner in this process, from a spool on disk to versions on disk."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aurora_core.errors import AuroraError, CheckpointError, ConfigError, PluginError
from aurora_core.learner.plan import LearnerPlan
from aurora_core.learner.random_state import random_state, restore_random_state
from aurora_core.records import TargetSpec
from aurora_core.spool import SpoolOptions, open_reader
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.toy_run import make_learnable_trace, make_toy_plan, write_traces
from aurora_core.testing.toy_speculator import ToySpeculator
from aurora_core.versions import VersionStore

NAN = float("nan")


@pytest.fixture(scope="module")
def spool(target: TargetSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty traces, some of them held out; copy it, because a reader writes counts into it."""
    path = tmp_path_factory.mktemp("spool") / "spool"
    write_traces(path, [make_learnable_trace(seed, target) for seed in range(40)])
    return path


@pytest.fixture
def make_plan(target: TargetSpec, spool: Path, tmp_path: Path) -> Callable[..., LearnerPlan]:
    def make(name: str, **options: Any) -> LearnerPlan:
        run_dir = tmp_path / name
        if not run_dir.exists():
            shutil.copytree(spool, run_dir / "spool")
        return make_toy_plan(run_dir, target, **options)

    return make


def last_checkpoint(plan: LearnerPlan) -> dict[str, Any]:
    path = max(Path(plan.learner_dir).glob("step-*.ckpt"))
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def store_of(plan: LearnerPlan) -> VersionStore:
    return VersionStore(Path(plan.versions_dir))


def same(one: object, other: object) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))  # type: ignore[arg-type]
    return one == other


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_five_steps_a_restart_and_five_more_are_ten_steps(
    learn: Any, make_plan: Any, decay: float
) -> None:
    options = {
        "speculator_options": {"noise": 0.3},
        "average_decay": decay,
        "max_replays_per_trace": 1,
        "warmup_steps": 7,
    }
    whole = make_plan("whole", max_steps=10, **options)
    learn(whole)
    # When versions are published makes no difference.
    options |= {"first_publish_steps": 1, "publish_every_steps": 1}
    learn(make_plan("parts", max_steps=5, **options))
    # A new process starts with random states of its own.
    torch.manual_seed(99)
    resumed = make_plan("parts", max_steps=10, **options)
    recorder = learn(resumed)
    assert [(e.step, e.resumed) for e in recorder.of("started")] == [(5, True)]
    one, other = last_checkpoint(whole), last_checkpoint(resumed)
    assert one["global_step"] == other["global_step"] == 10
    for key in ("state_dict", "optimizer_states", "lr_schedulers"):
        assert same(one[key], other[key]), key
    for key in ("num_tokens_trained", "average", "random"):
        assert same(one["aurora"][key], other["aurora"][key]), key


def test_what_is_learned_is_published_and_helps(learn: Any, make_plan: Any) -> None:
    plan = make_plan("run", max_steps=60, publish_every_steps=20, first_publish_steps=4)
    recorder = learn(plan)
    published = [event.version for event in recorder.of("published")]
    assert [draft.global_step for draft in published] == [4, 24, 44, 60]
    assert [draft.version for draft in published] == [1, 2, 3, 4]
    assert [draft.parent for draft in published] == [None, 1, 2, 3]
    assert store_of(plan).list() == tuple(published)
    lengths = [draft.metrics["holdout/acceptance_length"] for draft in published]
    assert lengths[-1] > 1.5 and lengths[-1] > lengths[0] + 0.3
    assert published[-1].metrics["train/loss"] < published[0].metrics["train/loss"]
    assert recorder.events[-1].event == "stopped" and recorder.events[-1].step == 60


def test_held_out_traces_are_scored_and_never_trained(learn: Any, make_plan: Any) -> None:
    plan = make_plan("run", max_steps=60, first_publish_steps=60)
    [event] = learn(plan).of("published")
    reader = open_reader(SpoolOptions(path=plan.sink_options["path"]).url)
    reader.poll()
    held_out = {trace.trace_id for trace in reader.holdout(100)}
    loops = last_checkpoint(plan)["loops"]["fit_loop"]["state_dict"]
    trained = set(loops["combined_loader"][0]["seen"])
    assert 0 < len(held_out) < 40
    assert len(trained) == 40 - len(held_out) and not trained & held_out
    assert len(event.version.holdout.num_anchors) == len(held_out)


def test_the_candidate_is_compared_with_the_version_that_is_live(
    learn: Any, make_plan: Any
) -> None:
    first = make_plan("run", max_steps=5)
    learn(first)
    initial = store_of(first).read(1)
    plan = make_plan("run", max_steps=40, initial_version=initial, publish_every_steps=15)
    versions = [event.version for event in learn(plan).of("published")]
    assert [draft.holdout.live_version for draft in versions] == [1, 1, 1]
    # The live version's score does not change; the candidate's does.
    live = {draft.metrics["holdout/live_acceptance_length"] for draft in versions}
    assert live == {initial.metrics["holdout/acceptance_length"]}
    assert versions[-1].metrics["holdout/acceptance_length"] > max(live)


def test_a_live_version_that_is_gone_leaves_no_evidence(learn: Any, make_plan: Any) -> None:
    first = make_plan("run", max_steps=5)
    learn(first)
    initial = store_of(first).read(1)
    shutil.rmtree(initial.path)
    recorder = learn(make_plan("run", max_steps=20, initial_version=initial))
    [event] = recorder.of("published")
    assert event.version.holdout is None


def test_a_new_lineage_starts_from_the_initial_version(learn: Any, make_plan: Any) -> None:
    first = make_plan("run", max_steps=20)
    learn(first)
    initial = store_of(first).list()[-1]
    shutil.rmtree(first.learner_dir)
    plan = make_plan("run", max_steps=2, first_publish_steps=1, initial_version=initial)
    recorder = learn(plan)
    assert [(e.step, e.resumed) for e in recorder.of("started")] == [(0, False)]
    parents = [event.version.parent for event in recorder.of("published")]
    assert parents == [initial.version, initial.version + 1]
    lineage = Path(plan.learner_dir) / "lineage" / "drafter" / "model.safetensors"
    assert lineage.read_bytes() == (Path(initial.path) / "model.safetensors").read_bytes()


def test_the_vocabulary_is_chosen_once(learn: Any, make_plan: Any, target: TargetSpec) -> None:
    options = {"speculator_options": {"draft_vocab_size": 8}, "start_traces": 1}
    first = make_plan("run", max_steps=3, **options)
    learn(first)
    chosen = last_checkpoint(first)["state_dict"]["drafter.draft_token_ids"]
    # Everything that the vocabulary was chosen from is gone; other tokens have come.
    shutil.rmtree(first.sink_options["path"])
    write_traces(
        Path(str(first.sink_options["path"])),
        [make_learnable_trace(seed, target, num_tokens=12) for seed in range(100, 120)],
    )
    resumed = make_plan("run", max_steps=6, **options)
    learn(resumed)
    assert torch.equal(last_checkpoint(resumed)["state_dict"]["drafter.draft_token_ids"], chosen)
    version = store_of(resumed).list()[-1]
    drafter = ToySpeculator(ToySpeculator.Config(), target).load(
        Path(version.path), TargetWeights(target)
    )
    assert torch.equal(drafter.draft_token_ids, chosen)


def test_a_broken_checkpoint_gives_way_to_an_older_one(
    learn: Any, make_plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plan = make_plan("run", max_steps=6, checkpoint_every_s=0.0)
    learn(plan)
    newest, older = sorted(Path(plan.learner_dir).glob("step-*.ckpt"), reverse=True)
    assert (newest.name, older.name) == ("step-000000006.ckpt", "step-000000005.ckpt")
    assert oct(newest.stat().st_mode & 0o777) == "0o600"
    newest.write_bytes(newest.read_bytes()[:-1000])
    [started] = learn(plan).of("started")
    assert (started.step, started.resumed) == (5, True)
    assert "cannot be read, trying an older one" in caplog.text


def test_without_any_readable_checkpoint_the_lineage_starts_over(
    learn: Any, make_plan: Any
) -> None:
    plan = make_plan("run", max_steps=3)
    learn(plan)
    for path in Path(plan.learner_dir).glob("step-*.ckpt"):
        path.write_bytes(b"")
    recorder = learn(plan)
    assert [(e.step, e.resumed) for e in recorder.of("started")] == [(0, False)]
    assert recorder.events[-1].step == 3


def test_what_was_learned_for_something_else_is_refused(
    learn: Any, make_plan: Any, target: TargetSpec
) -> None:
    plan = make_plan("run", max_steps=2)
    learn(plan)
    changed = make_plan("run", max_steps=2, speculator_options={"draft_vocab_size": 9})
    with pytest.raises(
        CheckpointError,
        match=r"'.*learner' holds was learned for other speculator options "
        r"\(\{'draft_vocab_size': 64\}, now \{'draft_vocab_size': 9\}\); use another run_dir",
    ):
        learn(changed)
    other = dataclasses.replace(target, fingerprint="other")
    with pytest.raises(CheckpointError, match=r"was learned for another target \('\w+', now 'oth"):
        learn(dataclasses.replace(plan, target=other))
    # Spelling out a default changes nothing.
    learn(make_plan("run", max_steps=2, speculator_options={"draft_vocab_size": 64}))


def test_a_checkpoint_of_another_drafter_is_refused(learn: Any, make_plan: Any) -> None:
    plan = make_plan("run", max_steps=2)
    learn(plan)
    [path] = Path(plan.learner_dir).glob("step-*.ckpt")
    content = torch.load(path, weights_only=True)
    del content["state_dict"]["drafter.cell.bias"]
    torch.save(content, path)
    with pytest.raises(
        CheckpointError, match=r"does not fit .*: 'drafter.cell.bias' is missing instead of \(16,\)"
    ):
        learn(plan)


def test_a_damaged_lineage_is_refused(learn: Any, make_plan: Any) -> None:
    plan = make_plan("run", max_steps=2)
    learn(plan)
    (Path(plan.learner_dir) / "lineage" / "lineage.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"lineage.json' cannot be read; remove '.*learner'"):
        learn(plan)


def test_bad_traces_are_counted_and_training_goes_on(
    learn: Any, make_plan: Any, target: TargetSpec
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


def test_averaged_weights_are_published_but_not_trained(learn: Any, make_plan: Any) -> None:
    plan = make_plan("run", max_steps=20, average_decay=0.9)
    learn(plan)
    content = last_checkpoint(plan)
    version = store_of(plan).list()[-1]
    assert version.global_step == content["global_step"] == 20
    from safetensors.torch import load_file

    published = load_file(Path(version.path) / "model.safetensors")
    average = content["aurora"]["average"]["average"]
    own = content["state_dict"]
    assert torch.equal(published["cell.weight"], average["cell.weight"])
    assert not torch.equal(published["cell.weight"], own["drafter.cell.weight"])


def test_a_full_disk_stops_neither_training_nor_later_versions(
    learn: Any, make_plan: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from aurora_core.testing import toy_network

    save, attempts = toy_network.save_network, []

    def full_once(network: Any, path: Path, fingerprint: str) -> None:
        attempts.append(path)
        if len(attempts) == 2:  # the first one began the lineage
            raise OSError(28, "No space left on device")
        save(network, path, fingerprint)

    monkeypatch.setattr(toy_network, "save_network", full_once)
    plan = make_plan("run", max_steps=10, publish_every_steps=4, first_publish_steps=4)
    recorder = learn(plan)
    assert [e.version.global_step for e in recorder.of("published")] == [8, 10]
    names = sorted(path.name for path in Path(plan.versions_dir).iterdir())
    assert names == ["v000001", "v000002"]
    assert "no version was published, training goes on: [Errno 28]" in caplog.text


def test_a_checkpoint_that_cannot_be_written_does_not_end_training(
    learn: Any, make_plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plan = make_plan("run", max_steps=4)
    (Path(plan.learner_dir) / "checkpoint.partial").mkdir(parents=True)
    assert learn(plan).events[-1].step == 4
    assert "no checkpoint was written, training goes on" in caplog.text


def test_an_export_that_cannot_be_read_back_is_never_published(
    learn: Any, make_plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aurora_core.testing import toy_network

    save, num_saved = toy_network.save_network, []

    def forgetful(network: Any, path: Path, fingerprint: str) -> None:
        save(network, path, fingerprint)
        num_saved.append(path)
        if len(num_saved) > 1:
            (path / "config.json").unlink()

    monkeypatch.setattr(toy_network, "save_network", forgetful)
    plan = make_plan("run", max_steps=10)
    with pytest.raises(CheckpointError, match="cannot be read"):
        learn(plan)
    assert not store_of(plan).list()
    assert not list(Path(plan.learner_dir).glob("*.partial"))


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


def test_mixed_precision_trains_and_publishes_float32(learn: Any, make_plan: Any) -> None:
    plan = make_plan("run", max_steps=5, precision="bf16-mixed")
    learn(plan)
    from safetensors.torch import load_file

    tensors = load_file(Path(store_of(plan).read(1).path) / "model.safetensors")
    assert tensors["cell.weight"].dtype == torch.float32


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


def test_every_generator_continues_where_it_was() -> None:
    def draw() -> list[float]:
        return [float(torch.rand(())), random.random(), float(np.random.rand())]

    state = random_state()
    first = draw()
    draw()
    restore_random_state(state)
    assert draw() == first


def test_no_further_rank_is_meant_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    from aurora_core.learner.ranks import is_first_process

    for name in ("RANK", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert is_first_process()
    monkeypatch.setitem(os.environ, "LOCAL_RANK", "0")
    assert is_first_process()
    monkeypatch.setitem(os.environ, "LOCAL_RANK", "1")
    assert not is_first_process()
