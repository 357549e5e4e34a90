"""Restarts: what is continued, what is refused, and from where."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from torch import Tensor

from aurora_core.errors import CheckpointError
from aurora_core.learner.lineage import check_continuable, check_identity
from aurora_core.learner.random_state import random_state, restore_random_state
from aurora_core.records import TargetSpec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.toy_run import make_learnable_trace, write_traces
from aurora_core.testing.toy_speculator import ToyOptions, ToySpeculator


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
    last_checkpoint: Any, learn: Any, make_plan: Any, decay: float
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


def test_a_new_lineage_starts_from_the_initial_version(
    store_of: Any, learn: Any, make_plan: Any
) -> None:
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


def test_the_vocabulary_is_chosen_once(
    store_of: Any, last_checkpoint: Any, learn: Any, make_plan: Any, target: TargetSpec
) -> None:
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


def test_what_a_learner_will_refuse_is_known_before_it_starts(
    learn: Any, make_plan: Any, target: TargetSpec
) -> None:
    plan = make_plan("run", max_steps=1)
    folder = Path(plan.learner_dir)
    same = ToySpeculator(ToyOptions(), target)
    other = ToySpeculator(ToyOptions(draft_vocab_size=9), target)
    check_continuable(folder, target, plan.speculator, other)  # nothing was learned yet
    learn(plan)
    check_continuable(folder, target, plan.speculator, same)
    with pytest.raises(CheckpointError, match=r"for other speculator options .* go back to what"):
        check_continuable(folder, target, plan.speculator, other)
    (folder / "lineage" / "lineage.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"lineage\.json' cannot be read; remove '"):
        check_continuable(folder, target, plan.speculator, same)


def test_options_that_only_serving_reads_may_change(
    learn: Any, make_plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyOptions, "serving_only", frozenset({"noise"}))
    learn(make_plan("run", max_steps=2))
    recorder = learn(make_plan("run", max_steps=3, speculator_options={"noise": 0.5}))
    assert [(event.step, event.resumed) for event in recorder.of("started")] == [(2, True)]
    with pytest.raises(CheckpointError, match="other speculator options"):
        learn(make_plan("run", max_steps=3, speculator_options={"num_steps": 2}))


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


def test_a_checkpoint_that_cannot_be_written_does_not_end_training(
    learn: Any, make_plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plan = make_plan("run", max_steps=4)
    (Path(plan.learner_dir) / "checkpoint.partial").mkdir(parents=True)
    assert learn(plan).events[-1].step == 4
    assert "no checkpoint was written, training goes on" in caplog.text


def test_an_option_that_is_newer_than_the_folder_and_not_set_is_no_difference() -> None:
    now = {"target_fingerprint": "t", "speculator": "s", "speculator_options": {"a": 1, "b": None}}
    check_identity({**now, "speculator_options": {"a": 1}}, now, Path("learner"))
    with pytest.raises(CheckpointError, match=r"other speculator options \({'a': 2}, now {'a': 1}"):
        check_identity({**now, "speculator_options": {"a": 2}}, now, Path("learner"))


def test_half_a_checkpoint_does_not_keep_the_last_of_a_full_disk(
    learn: Any, make_plan: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill_up(trainer: lightning.Trainer, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lightning.Trainer, "save_checkpoint", fill_up)
    plan = make_plan("run", max_steps=2)
    learn(plan)
    assert "no checkpoint was written, training goes on" in caplog.text
    assert not (Path(plan.learner_dir) / "checkpoint.partial").exists()


def test_every_generator_continues_where_it_was() -> None:
    def draw() -> list[float]:
        return [float(torch.rand(())), random.random(), float(np.random.rand())]

    state = random_state()
    first = draw()
    draw()
    restore_random_state(state)
    assert draw() == first
