"""Published weights: complete, self-contained, strict, and the same drafter again."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aurora_core.errors import CheckpointError
from aurora_core.interfaces import Speculator
from aurora_core.records import Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.suites.speculator_fixtures import draft_along, require_equal, serve
from aurora_core.testing.suites.speculator_learning import LearningPromises

WEIGHTS = "model.safetensors"


class CheckpointPromises(LearningPromises):
    """`save` and `load`."""

    @pytest.fixture
    def saved(self, trainable: Speculator, module: nn.Module, tmp_path: Path) -> Path:
        """A published module, moved away from where it was written."""
        written = tmp_path / "written"
        written.mkdir()
        trainable.save(module, written)
        return Path(shutil.move(written, tmp_path / "moved"))

    def test_a_checkpoint_is_a_config_and_safetensors(self, saved: Path) -> None:
        assert isinstance(json.loads((saved / "config.json").read_text(encoding="utf-8")), dict)
        assert load_file(saved / WEIGHTS)

    def test_what_is_loaded_is_what_was_saved(
        self, trainable: Speculator, module: nn.Module, weights: TargetWeights, saved: Path
    ) -> None:
        """Whole numbers exactly, weights up to bfloat16's rounding."""
        loaded, expected = trainable.load(saved, weights).state_dict(), module.state_dict()
        assert loaded.keys() == expected.keys()
        for name, tensor in expected.items():
            assert loaded[name].shape == tensor.shape, name
            if tensor.is_floating_point():
                torch.testing.assert_close(loaded[name].float(), tensor, rtol=1e-2, atol=1e-3)
            else:
                assert torch.equal(loaded[name], tensor), name

    def test_saving_again_gives_the_same_tensors(
        self, trainable: Speculator, weights: TargetWeights, saved: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "again").mkdir()
        trainable.save(trainable.load(saved, weights), tmp_path / "again")
        first, second = load_file(saved / WEIGHTS), load_file(tmp_path / "again" / WEIGHTS)
        assert first.keys() == second.keys()
        for name, tensor in first.items():
            assert torch.equal(tensor, second[name]), name

    def test_a_loaded_drafter_proposes_what_was_saved(
        self,
        trainable: Speculator,
        weights: TargetWeights,
        saved: Path,
        tmp_path: Path,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """The map to target ids and every flag survive, twice over, in another instance."""
        first = trainable.load(saved, weights)
        (tmp_path / "again").mkdir()
        trainable.save(first, tmp_path / "again")
        another = type(trainable)(trainable.options, trainable.target)
        second = another.load(tmp_path / "again", TargetWeights(trainable.target))
        requests = dict(enumerate(traces))
        depths = dict.fromkeys(requests, num_speculative_tokens)
        found, expected = (
            draft_along(serve(maker, module), requests, depths=depths, max_nodes=max_nodes)
            for maker, module in ((another, second), (trainable, first))
        )
        for index, proposals in expected.items():
            for proposal, mine in zip(proposals, found[index], strict=True):
                require_equal(mine, proposal, f"request {index}")

    def test_a_loaded_module_goes_on_learning(
        self,
        trainable: Speculator,
        weights: TargetWeights,
        module: nn.Module,
        saved: Path,
        traces: list[Trace],
    ) -> None:
        """A published version can be the parent of a lineage."""
        loaded = trainable.load(saved, weights)
        assert {p.dtype for p in loaded.parameters()} == {torch.float32}
        batch = trainable.collate(traces)
        losses = [float(trainable.loss(each, batch).loss_sum) for each in (module, loaded)]
        assert losses[1] == pytest.approx(losses[0], rel=5e-2)

    def test_a_missing_tensor_is_refused(
        self, trainable: Speculator, weights: TargetWeights, saved: Path
    ) -> None:
        for name in sorted(load_file(saved / WEIGHTS)):
            self.require_refusal(trainable, weights, saved, {name: None})

    def test_an_extra_tensor_is_refused(
        self, trainable: Speculator, weights: TargetWeights, saved: Path
    ) -> None:
        self.require_refusal(trainable, weights, saved, {"extra.weight": torch.zeros(2, 2)})

    def test_a_misshapen_tensor_is_refused(
        self, trainable: Speculator, weights: TargetWeights, saved: Path
    ) -> None:
        for name, tensor in sorted(load_file(saved / WEIGHTS).items()):
            longer = torch.cat((tensor, tensor[:1])) if tensor.dim() else tensor[None]
            self.require_refusal(trainable, weights, saved, {name: longer})

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_tensor_that_is_not_finite_is_refused(
        self, trainable: Speculator, weights: TargetWeights, saved: Path, value: float
    ) -> None:
        for name, tensor in sorted(load_file(saved / WEIGHTS).items()):
            if tensor.is_floating_point():
                damaged = tensor.clone()
                damaged.view(-1)[-1] = value
                self.require_refusal(trainable, weights, saved, {name: damaged})

    def test_ids_beyond_the_vocabulary_are_refused(
        self, trainable: Speculator, weights: TargetWeights, saved: Path
    ) -> None:
        """Whole numbers in a checkpoint are ids or offsets of ids."""
        for name, tensor in sorted(load_file(saved / WEIGHTS).items()):
            if tensor.dtype == torch.int64 and tensor.numel():
                damaged = tensor.clone()
                damaged.view(-1)[-1] = 2**40
                self.require_refusal(trainable, weights, saved, {name: damaged})

    def test_a_checkpoint_of_another_target_is_refused(
        self, trainable: Speculator, weights: TargetWeights, saved: Path
    ) -> None:
        other = dataclasses.replace(trainable.target, fingerprint="another")
        with pytest.raises(CheckpointError):
            type(trainable)(trainable.options, other).load(saved, weights)

    def test_damaged_files_are_refused(
        self, trainable: Speculator, weights: TargetWeights, saved: Path, tmp_path: Path
    ) -> None:
        for name in ("config.json", WEIGHTS):
            content = (saved / name).read_bytes()
            for damage in (b"", content[: len(content) // 2], None):
                copy = tmp_path / "damaged"
                shutil.copytree(saved, copy)
                if damage is None:
                    (copy / name).unlink()
                else:
                    (copy / name).write_bytes(damage)
                with pytest.raises(CheckpointError):
                    trainable.load(copy, weights)
                shutil.rmtree(copy)

    def require_refusal(
        self,
        trainable: Speculator,
        weights: TargetWeights,
        saved: Path,
        changes: Mapping[str, Tensor | None],
    ) -> None:
        """See that a checkpoint is refused once some tensors are others, or None: left out."""
        damaged = saved.with_name("damaged")
        shutil.copytree(saved, damaged)
        tensors: dict[str, Tensor | None] = {**load_file(damaged / WEIGHTS), **changes}
        kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        save_file(kept, damaged / WEIGHTS)
        with pytest.raises(CheckpointError):
            trainable.load(damaged, weights)
            pytest.fail(f"loaded although {sorted(changes)} was missing, extra or damaged")
        shutil.rmtree(damaged)
