"""The checkpoint in vLLM's layout: what it holds, and every fault that is refused."""

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

SHARED_NAMES = {
    *(f"blocks.{head}.layers.{layer}.{kind}"
      for head in range(3) for layer in range(2) for kind in ("weight", "bias")),
    "lm_head.weight",
    "token_map",
}  # fmt: skip
"""vLLM: `original_lm_head` true, `truncated_vocab_size` below `vocab_size`."""

OWN_NAMES = SHARED_NAMES - {"lm_head.weight"} | {f"lm_heads.{head}.weight" for head in range(3)}
"""vLLM: `original_lm_head` false."""


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


@pytest.mark.parametrize("own_heads", [False, True])
def test_what_is_loaded_equals_what_was_saved(
    speculator: MedusaSpeculator, network: MedusaNetwork, weights: TargetWeights, saved: Path
) -> None:
    loaded = speculator.load(saved, weights)
    expected = network.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert torch.equal(loaded.draft_head, network.draft_head)
    assert all(parameter.dtype == torch.float32 for parameter in loaded.parameters())
    assert all(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("own_heads", [False, True])
def test_saving_what_was_loaded_gives_the_same_bytes(
    speculator: MedusaSpeculator, weights: TargetWeights, saved: Path, tmp_path: Path
) -> None:
    speculator.save(speculator.load(saved, weights), tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (saved / name).read_bytes()


@pytest.mark.parametrize(
    ("own_heads", "names"), [(False, SHARED_NAMES), (True, OWN_NAMES)], ids=["shared", "own"]
)
def test_tensors_are_those_that_vllm_loads(
    saved: Path, names: set[str], weights: TargetWeights, network: MedusaNetwork
) -> None:
    tensors = load_file(saved / "model.safetensors")
    assert tensors.keys() == names
    if "lm_head.weight" in names:
        assert torch.equal(tensors["lm_head.weight"], weights.lm_head[network.token_map])


def test_a_whole_vocabulary_needs_no_map(
    make_speculator: Callable[..., MedusaSpeculator], weights: TargetWeights, tmp_path: Path
) -> None:
    speculator = make_speculator(draft_vocab_size=4096, num_heads=1)
    network = speculator.build_module(weights, [])
    assert network.draft_head.data_ptr() == weights.lm_head.data_ptr()
    speculator.save(network, tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == {
        "blocks.0.layers.0.weight", "blocks.0.layers.0.bias", "lm_head.weight"
    }  # fmt: skip
    loaded = speculator.load(tmp_path, weights)
    assert loaded.token_map.tolist() == list(range(256))
    assert loaded.draft_head.data_ptr() == weights.lm_head.data_ptr()


@pytest.mark.parametrize("own_heads", [False, True])
def test_config_states_every_flag_of_vllms_medusa(
    saved: Path, target: TargetSpec, own_heads: bool
) -> None:
    config = json.loads((saved / "config.json").read_text())
    assert config.pop("aurora") == {
        "schema": 1,
        "speculator": "medusa",
        "target_fingerprint": target.fingerprint,
        "tokenizer_fingerprint": target.tokenizer_fingerprint,
    }
    assert config == {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": 32,
        "vocab_size": 256,
        "truncated_vocab_size": 96,
        "num_heads": 3,
        "num_hidden_layers": 2,
        "medusa_fc_bias": True,
        "original_lm_head": not own_heads,
        "logit_scale": 1.0,
        "max_paths": 64,
        "topk": 8,
        "torch_dtype": "float32",
    }
    # vLLM renames every key with both words to one of two names.
    counted = [key for key in config if "num" in key and ("heads" in key or "layers" in key)]
    assert counted == ["num_heads", "num_hidden_layers"]


def test_published_weights_are_bfloat16_by_default(
    make_speculator: Callable[..., MedusaSpeculator],
    network: MedusaNetwork,
    weights: TargetWeights,
    tmp_path: Path,
) -> None:
    speculator = make_speculator(export_dtype="bfloat16")
    speculator.save(network, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.pop("token_map").dtype == torch.int64
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    # The head of a float32 target was rounded, and is still known for the target's.
    loaded = speculator.load(tmp_path, weights)
    torch.testing.assert_close(
        loaded.blocks[1].layers[0].weight, network.blocks[1].layers[0].weight, rtol=0.01, atol=0
    )


def test_the_checkpoint_decides_on_its_shape(
    make_speculator: Callable[..., MedusaSpeculator], weights: TargetWeights, saved: Path
) -> None:
    loaded = make_speculator(num_heads=5, draft_vocab_size=50, own_heads=True).load(saved, weights)
    shape = loaded.shape
    assert (shape.num_heads, shape.num_blocks, shape.draft_vocab_size, shape.own_heads) == (
        3, 2, 96, False
    )  # fmt: skip


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
