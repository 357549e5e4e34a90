"""Versions: when they appear, what they hold, what they are compared with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from aurora_core.errors import CheckpointError
from aurora_core.spool import SpoolOptions, open_reader


def test_what_is_learned_is_published_and_helps(store_of: Any, learn: Any, make_plan: Any) -> None:
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


def test_held_out_traces_are_scored_and_never_trained(
    last_checkpoint: Any, learn: Any, make_plan: Any
) -> None:
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
    store_of: Any, learn: Any, make_plan: Any
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


def test_a_live_version_that_is_gone_leaves_no_evidence(
    store_of: Any, learn: Any, make_plan: Any
) -> None:
    first = make_plan("run", max_steps=5)
    learn(first)
    initial = store_of(first).read(1)
    shutil.rmtree(initial.path)
    recorder = learn(make_plan("run", max_steps=20, initial_version=initial))
    [event] = recorder.of("published")
    assert event.version.holdout is None


def test_averaged_weights_are_published_but_not_trained(
    store_of: Any, last_checkpoint: Any, learn: Any, make_plan: Any
) -> None:
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


@pytest.mark.parametrize("written_by", ["python", "safetensors"])
def test_a_disk_that_fails_stops_neither_training_nor_later_versions(
    learn: Any,
    make_plan: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    written_by: str,
) -> None:
    from safetensors.torch import save_file

    from aurora_core.testing import toy_network

    save, attempts = toy_network.save_network, []

    def fail_once(network: Any, path: Path, fingerprint: str) -> None:
        attempts.append(path)
        if len(attempts) == 2:  # the first one began the lineage
            if written_by == "python":
                raise OSError(28, "No space left on device")
            save_file({}, path / "gone" / "model.safetensors")  # it raises no OSError
        save(network, path, fingerprint)

    monkeypatch.setattr(toy_network, "save_network", fail_once)
    plan = make_plan("run", max_steps=10, publish_every_steps=4, first_publish_steps=4)
    recorder = learn(plan)
    assert [e.version.global_step for e in recorder.of("published")] == [8, 10]
    names = sorted(path.name for path in Path(plan.versions_dir).iterdir())
    assert names == ["v000001", "v000002"]
    [warning] = [one for one in caplog.messages if "no version was published" in one]
    assert "training goes on" in warning


def test_an_export_that_cannot_be_read_back_is_never_published(
    store_of: Any, learn: Any, make_plan: Any, monkeypatch: pytest.MonkeyPatch
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


def test_mixed_precision_trains_and_publishes_float32(
    store_of: Any, learn: Any, make_plan: Any
) -> None:
    plan = make_plan("run", max_steps=5, precision="bf16-mixed")
    learn(plan)
    from safetensors.torch import load_file

    tensors = load_file(Path(store_of(plan).read(1).path) / "model.safetensors")
    assert tensors["cell.weight"].dtype == torch.float32
