"""A version that does not look like the drafter vLLM was started with never reaches it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from aurora_backend_vllm.engine.checkpoint import CheckpointShape
from aurora_backend_vllm.engine.draft_weights import DraftWeights
from aurora_backend_vllm.engine.live_drafter import LiveDrafter
from aurora_core.errors import CheckpointError
from aurora_core.records import NO_DRAFTER, DraftVersion
from aurora_core.versions import VersionStore
from plugins.backend_vllm.tests.engine_records import HIDDEN, VOCABULARY, engine_settings

NUM_DRAFTED = 10


def write(folder: Path, value: float = 0.0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        "norm.weight": torch.full((HIDDEN,), value),
        "lm_head.weight": torch.full((NUM_DRAFTED, HIDDEN), value),
        "d2t": torch.arange(NUM_DRAFTED) * 3,
    }
    save_file(tensors, folder / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLMEagle3"], "aurora": {"schema": 1}}
    (folder / "config.json").write_text(json.dumps(config))


def change_tensor(name: str, tensor: torch.Tensor | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
        save_file(tensors, folder / "model.safetensors")

    return change


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-20])


def other_rope(folder: Path) -> None:
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLMEagle3"], "rope_theta": 1e6})
    )


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut_short, "missing or damaged"),
        (change_tensor("norm.weight", None), r"other tensors .* 'norm\.weight'"),
        (change_tensor("more", torch.ones(1)), r"other tensors .* 'more'"),
        (change_tensor("norm.weight", torch.ones(5)), r"other tensors .* 'norm\.weight'"),
        (change_tensor("norm.weight", torch.full((HIDDEN,), float("nan"))), "not finite"),
        (change_tensor("d2t", torch.arange(NUM_DRAFTED) * 9), "vocabulary map"),
        (change_tensor("d2t", -torch.arange(NUM_DRAFTED)), "vocabulary map"),
        (other_rope, "has rope_theta = 1000000"),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: Callable[[Path], None], sentence: str) -> None:
    write(tmp_path / "first")
    shape = CheckpointShape(tmp_path / "first", target_vocab_size=VOCABULARY)
    write(tmp_path / "next", 1.0)
    assert shape.read(tmp_path / "next").tensors["norm.weight"][0] == 1.0
    damage(tmp_path / "next")
    with pytest.raises(CheckpointError, match=sentence):
        shape.read(tmp_path / "next")


class ToyDraft(torch.nn.Module):
    """Keeps a checkpoint under the names that vLLM gives its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.draft_id_to_target_id = torch.nn.Parameter(
            torch.zeros(NUM_DRAFTED, dtype=torch.int64), requires_grad=False
        )
        self.model = torch.nn.Module()
        self.model.norm = torch.nn.Module()
        self.model.norm.weight = torch.nn.Parameter(torch.zeros(HIDDEN))
        self.lm_head = torch.nn.Module()
        # Padded, as vLLM pads heads.
        self.lm_head.weight = torch.nn.Parameter(torch.zeros(NUM_DRAFTED + 6, HIDDEN))


class ToyRunner:
    """A runner whose drafter takes weights, unless told to fail."""

    def __init__(self) -> None:
        self.draft = ToyDraft()
        self.failures: list[str] = []

    def get_draft_model(self) -> ToyDraft:
        return self.draft

    def load(self, _: object, checkpoint) -> None:
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "raise":
            raise RuntimeError("out of memory")
        tensors = dict(checkpoint.tensors)
        if failure == "ignore":
            tensors["lm_head.weight"] = torch.full((NUM_DRAFTED, HIDDEN), 77.0)
        with torch.no_grad():
            self.draft.model.norm.weight.copy_(tensors["norm.weight"])
            self.draft.lm_head.weight[:NUM_DRAFTED] = tensors["lm_head.weight"]
            self.draft.draft_id_to_target_id.copy_(tensors["d2t"])


class Setup:
    """Draft weights of a worker that was started with version 1."""

    def __init__(self, folder: Path) -> None:
        self.store = VersionStore(folder / "versions")
        first = self.publish(1.0)
        self.live = LiveDrafter(first.version, first.checksum)
        self.runner = ToyRunner()
        self.weights = DraftWeights(
            self.runner,
            engine_settings(folder / "versions"),
            self.live,
            Path(first.path),
            load=self.runner.load,
        )

    def publish(self, value: float) -> DraftVersion:
        return self.store.stage(
            self.store.next_version(),
            lambda folder: write(folder, value),
            parent=None,
            speculator="eagle3",
            target_fingerprint="f" * 16,
            global_step=1,
            num_tokens_trained=1,
        )

    def stage(self, version: int, checksum: str) -> dict:
        self.weights.stage(version, checksum)
        while (staged := self.weights.staged(version))["state"] == "loading":
            pass
        return staged

    @property
    def value(self) -> float:
        return float(self.runner.draft.lm_head.weight[0, 0])


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_a_staged_version_goes_live_with_the_checksum_of_what_was_read(setup: Setup) -> None:
    draft = setup.publish(2.0)
    assert setup.stage(draft.version, draft.checksum)["state"] == "ready"
    assert setup.live.version == 1, "staging changes nothing"
    receipt = setup.weights.swap(draft.version)
    assert (receipt.version, receipt.checksum) == (2, draft.checksum)
    assert (setup.live.version, setup.live.checksum, setup.value) == (2, draft.checksum, 2.0)


def test_a_version_with_another_checksum_is_not_staged(setup: Setup) -> None:
    draft = setup.publish(2.0)
    staged = setup.stage(draft.version, "0" * 64)
    assert staged["state"] == "refused"
    assert "publish it again" in staged["reason"]


def test_a_version_that_is_not_there_is_not_staged(setup: Setup) -> None:
    assert "version 9 is not in" in setup.stage(9, "0" * 64)["reason"]


def test_a_swap_without_staging_is_refused(setup: Setup) -> None:
    with pytest.raises(CheckpointError, match="version 7 was not staged"):
        setup.weights.swap(7)


@pytest.mark.parametrize("failure", ["raise", "ignore"])
def test_a_load_that_fails_brings_the_previous_weights_back(setup: Setup, failure: str) -> None:
    first, second = setup.publish(2.0), setup.publish(3.0)
    setup.stage(first.version, first.checksum)
    setup.weights.swap(first.version)
    setup.stage(second.version, second.checksum)
    setup.runner.failures = [failure]
    with pytest.raises(CheckpointError, match="the previous drafter serves on"):
        setup.weights.swap(second.version)
    assert (setup.live.version, setup.value) == (first.version, 2.0)


def test_a_load_that_cannot_be_undone_switches_drafting_off(setup: Setup) -> None:
    draft = setup.publish(2.0)
    setup.stage(draft.version, draft.checksum)
    setup.runner.failures = ["raise", "raise"]
    with pytest.raises(CheckpointError, match="serves on without speculation"):
        setup.weights.swap(draft.version)
    assert setup.live.version == NO_DRAFTER


def test_drafting_is_switched_off_without_loading_anything(setup: Setup) -> None:
    receipt = setup.weights.swap(NO_DRAFTER)
    assert (receipt.version, receipt.checksum) == (NO_DRAFTER, "")
    assert not setup.live.drafts
