"""Every fault of a checkpoint that is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from aurora_core.errors import CheckpointError
from aurora_core.records import TargetSpec, Trace
from aurora_core.target.weights import TargetWeights
from aurora_medusa.model import MedusaNetwork
from aurora_medusa.speculator import MedusaSpeculator
from plugins.medusa.tests.test_checkpoint import SHARED_NAMES


@pytest.fixture
def own_heads() -> bool:
    return False


@pytest.fixture
def speculator(
    make_speculator: Callable[..., MedusaSpeculator], own_heads: bool
) -> MedusaSpeculator:
    return make_speculator(num_blocks=2, own_heads=own_heads)


@pytest.fixture
def network(
    speculator: MedusaSpeculator, weights: TargetWeights, make_trace: Callable[..., Trace]
) -> MedusaNetwork:
    torch.manual_seed(0)
    network = speculator.build_module(weights, [make_trace(1)])
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network  # type: ignore[return-value]


@pytest.fixture
def saved(speculator: MedusaSpeculator, network: MedusaNetwork, tmp_path: Path) -> Path:
    speculator.save(network, tmp_path / "version")
    return tmp_path / "version"


def edit_tensors(path: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def edit_config(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def _set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.__setitem__(name, value)


@pytest.mark.parametrize(
    ("own_heads", "name"),
    [*((False, name) for name in sorted(SHARED_NAMES)), (True, "lm_heads.1.weight")],
)
def test_a_missing_tensor_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path, name: str
) -> None:
    edit_tensors(saved, lambda tensors: tensors.__delitem__(name))
    with pytest.raises(CheckpointError, match=rf"lacks \['{name}'\]; publish it again$"):
        speculator.load(saved, weights)


@pytest.mark.parametrize("name", ["blocks.3.layers.0.weight", "lm_heads.0.weight"])
def test_an_unknown_tensor_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path, name: str
) -> None:
    edit_tensors(saved, _set(name, torch.zeros(32, 32)))
    with pytest.raises(CheckpointError, match=rf"has the unknown \['{name}'\]"):
        speculator.load(saved, weights)


def test_a_misshapen_tensor_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path
) -> None:
    edit_tensors(saved, _set("blocks.0.layers.0.weight", torch.zeros(32, 31)))
    with pytest.raises(CheckpointError, match=r"has shape \[32, 31\], expected \[32, 32\]"):
        speculator.load(saved, weights)


@pytest.mark.parametrize("name", ["token_map", "blocks.0.layers.0.bias"])
def test_a_tensor_of_another_kind_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path, name: str
) -> None:
    edit_tensors(saved, lambda tensors: tensors.update({name: tensors[name].to(torch.int32)}))
    with pytest.raises(CheckpointError, match=rf"'{name}'.*holds torch.int32, expected"):
        speculator.load(saved, weights)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path, value: float
) -> None:
    edit_tensors(saved, lambda tensors: tensors["blocks.2.layers.1.bias"][3:4].fill_(value))
    with pytest.raises(CheckpointError, match=r"'blocks.2.layers.1.bias'.*not finite; go back"):
        speculator.load(saved, weights)


def test_weights_that_are_not_finite_are_never_written(
    speculator: MedusaSpeculator, network: MedusaNetwork, tmp_path: Path
) -> None:
    with torch.no_grad():
        network.blocks[0].layers[0].weight[0, 0] = float("nan")
    with pytest.raises(CheckpointError, match=r"'blocks.0.layers.0.weight'.*not finite"):
        speculator.save(network, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [(0, -1, "outside 0 to 255"), (95, 256, "outside 0 to 255"), (1, 0, "do not increase")],
)
def test_an_invalid_vocabulary_map_is_refused(
    speculator: MedusaSpeculator,
    weights: TargetWeights,
    saved: Path,
    place: int,
    value: int,
    fault: str,
) -> None:
    edit_tensors(saved, lambda tensors: tensors["token_map"][place : place + 1].fill_(value))
    with pytest.raises(CheckpointError, match=rf"vocabulary map of .* is invalid: .*{fault}"):
        speculator.load(saved, weights)


def test_the_head_of_another_target_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path
) -> None:
    edit_tensors(saved, lambda tensors: tensors["lm_head.weight"][5].add_(0.5))
    with pytest.raises(CheckpointError, match=r"'lm_head.weight'.*not the output head of target"):
        speculator.load(saved, weights)


def test_truncated_weights_are_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path
) -> None:
    content = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"model.safetensors of .* is missing or damaged"):
        speculator.load(saved, weights)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"aurora": {}}'])
def test_an_unreadable_config_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path, content: str | None
) -> None:
    if content is None:
        (saved / "config.json").unlink()
    else:
        (saved / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config.json of .* missing, unreadable or incompl"):
        speculator.load(saved, weights)


def test_a_checkpoint_of_another_speculator_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path
) -> None:
    edit_config(saved, lambda config: config["aurora"].__setitem__("speculator", "eagle3"))
    with pytest.raises(CheckpointError, match=r"is of speculator 'eagle3', schema 1, expected"):
        speculator.load(saved, weights)


@pytest.mark.parametrize("kind", ["target", "tokenizer"])
def test_a_checkpoint_of_another_target_is_refused(
    speculator: MedusaSpeculator,
    target: TargetSpec,
    weights: TargetWeights,
    saved: Path,
    kind: str,
) -> None:
    name = "fingerprint" if kind == "target" else "tokenizer_fingerprint"
    other = dataclasses.replace(target, **{name: "another"})
    with pytest.raises(CheckpointError, match=rf"made for another {kind} than that of 'tiny'"):
        MedusaSpeculator(speculator.options, other).load(saved, weights)


@pytest.mark.parametrize(
    ("name", "value"),
    [("medusa_fc_bias", False), ("vocab_size", 255), ("hidden_size", "many"), ("topk", None)],
)
def test_a_config_that_contradicts_the_target_or_the_network_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path, name: str, value: object
) -> None:
    edit_config(saved, _set(name, value))
    with pytest.raises(CheckpointError, match=rf"has {name} = {value!r}, expected "):
        speculator.load(saved, weights)


@pytest.mark.parametrize(
    ("name", "value"),
    [("truncated_vocab_size", 0), ("truncated_vocab_size", 257), ("num_heads", 0),
     ("num_hidden_layers", -1), ("num_heads", 10**9)],
)  # fmt: skip
def test_an_impossible_size_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path, name: str, value: int
) -> None:
    edit_config(saved, _set(name, value))
    with pytest.raises(CheckpointError, match=rf"has {name} = {value}, expected 1 to "):
        speculator.load(saved, weights)


def test_a_config_whose_sizes_differ_from_its_tensors_is_refused(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path
) -> None:
    edit_config(saved, _set("num_heads", 4))
    with pytest.raises(CheckpointError, match=r"lacks \['blocks.3.layers.0.bias'"):
        speculator.load(saved, weights)
