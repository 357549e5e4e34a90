"""The native checkpoint: what it holds, and every fault that is refused."""

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
from aurora_eagle.model import Eagle3Network
from aurora_eagle.speculator import Eagle3Speculator

NATIVE_NAMES = {
    "d2t",
    "fc.weight",
    "lm_head.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight",
    "midlayer.mlp.down_proj.weight",
    "midlayer.mlp.gate_proj.weight",
    "midlayer.mlp.up_proj.weight",
    "midlayer.post_attention_layernorm.weight",
    "midlayer.self_attn.k_proj.weight",
    "midlayer.self_attn.o_proj.weight",
    "midlayer.self_attn.q_proj.weight",
    "midlayer.self_attn.v_proj.weight",
    "norm.weight",
    "t2d",
}


@pytest.fixture
def network(
    speculator: Eagle3Speculator, weights: TargetWeights, make_trace: Callable[..., Trace]
) -> Eagle3Network:
    torch.manual_seed(0)
    return speculator.build_module(weights, [make_trace(1)])  # type: ignore[return-value]


@pytest.fixture
def saved(speculator: Eagle3Speculator, network: Eagle3Network, tmp_path: Path) -> Path:
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


def test_what_is_loaded_equals_what_was_saved(
    speculator: Eagle3Speculator, network: Eagle3Network, weights: TargetWeights, saved: Path
) -> None:
    loaded = speculator.load(saved, weights)
    expected = network.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_saving_what_was_loaded_gives_the_same_bytes(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path, tmp_path: Path
) -> None:
    speculator.save(speculator.load(saved, weights), tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (saved / name).read_bytes()


def test_tensors_have_native_names_and_the_embedding_stays_with_the_target(saved: Path) -> None:
    assert load_file(saved / "model.safetensors").keys() == NATIVE_NAMES


def test_published_weights_are_bfloat16_by_default(
    make_speculator: Callable[..., Eagle3Speculator], network: Eagle3Network, tmp_path: Path
) -> None:
    make_speculator(export_dtype="bfloat16").save(network, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].dtype == torch.bool
    floats = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    assert floats == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_config_reads_as_a_llama_model_with_the_targets_rotary_base(
    saved: Path, weights: TargetWeights
) -> None:
    from transformers import LlamaConfig

    config = LlamaConfig.from_pretrained(saved)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": weights.rope_theta}
    assert (config.hidden_size, config.num_hidden_layers) == (weights.hidden_size, 1)
    assert config.num_key_value_heads == weights.num_key_value_heads


def test_config_states_every_flag_that_engines_default_differently(
    saved: Path, target: TargetSpec, speculator: Eagle3Speculator
) -> None:
    config = json.loads((saved / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    for flag in ("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm"):
        assert config[flag] is False
    assert config["tie_word_embeddings"] is False
    assert config["draft_vocab_size"] == 96
    layers = list(speculator.needs.aux_layers)
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == layers
    assert config["aurora"]["aux_layer_convention"] == "entering"
    assert config["aurora"]["target_fingerprint"] == target.fingerprint


def _set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.__setitem__(name, value)


@pytest.mark.parametrize("name", sorted(NATIVE_NAMES))
def test_a_missing_tensor_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path, name: str
) -> None:
    edit_tensors(saved, lambda tensors: tensors.__delitem__(name))
    with pytest.raises(CheckpointError, match=rf"lacks \['{name}'\]; publish it again$"):
        speculator.load(saved, weights)


def test_an_unknown_tensor_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path
) -> None:
    edit_tensors(saved, _set("embed_tokens.weight", torch.zeros(2, 2)))
    with pytest.raises(CheckpointError, match=r"has the unknown \['embed_tokens.weight'\]"):
        speculator.load(saved, weights)


def test_a_renamed_tensor_is_refused_by_both_names(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path
) -> None:
    edit_tensors(
        saved, lambda tensors: tensors.__setitem__("model.norm.weight", tensors.pop("norm.weight"))
    )
    with pytest.raises(CheckpointError, match=r"lacks \['norm.*and has the unknown \['model.norm"):
        speculator.load(saved, weights)


def test_a_misshapen_tensor_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path
) -> None:
    edit_tensors(saved, _set("fc.weight", torch.zeros(32, 64)))
    with pytest.raises(
        CheckpointError, match=r"'fc.weight'.*shape \[32, 64\], expected \[32, 96\]"
    ):
        speculator.load(saved, weights)


def test_a_tensor_of_another_kind_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path
) -> None:
    edit_tensors(saved, lambda tensors: tensors.__setitem__("d2t", tensors["d2t"].float()))
    with pytest.raises(CheckpointError, match=r"'d2t'.*holds torch.float32, expected torch.int64"):
        speculator.load(saved, weights)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path, value: float
) -> None:
    edit_tensors(saved, lambda tensors: tensors["norm.weight"][3:4].fill_(value))
    with pytest.raises(CheckpointError, match=r"'norm.weight'.*not finite; go back"):
        speculator.load(saved, weights)


def test_weights_that_are_not_finite_are_never_written(
    speculator: Eagle3Speculator, network: Eagle3Network, tmp_path: Path
) -> None:
    with torch.no_grad():
        network.fc.weight[0, 0] = float("nan")
    with pytest.raises(CheckpointError, match=r"'fc.weight'.*not finite"):
        speculator.save(network, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_an_invalid_vocabulary_map_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path
) -> None:
    edit_tensors(saved, lambda tensors: tensors["d2t"].copy_(torch.arange(96)))
    with pytest.raises(CheckpointError, match=r"vocabulary map of checkpoint .* is invalid: "):
        speculator.load(saved, weights)


def test_truncated_weights_are_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path
) -> None:
    content = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"model.safetensors of .* is missing or damaged"):
        speculator.load(saved, weights)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"aurora": {}}'])
def test_an_unreadable_config_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path, content: str | None
) -> None:
    if content is None:
        (saved / "config.json").unlink()
    else:
        (saved / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config.json of .* missing, unreadable or incompl"):
        speculator.load(saved, weights)


def test_a_checkpoint_without_our_section_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path
) -> None:
    edit_config(saved, lambda config: config.__delitem__("aurora"))
    with pytest.raises(CheckpointError, match=r"config.json of .* \(KeyError: 'aurora'\)"):
        speculator.load(saved, weights)


def test_a_checkpoint_of_another_speculator_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path
) -> None:
    edit_config(saved, lambda config: config["aurora"].__setitem__("speculator", "medusa"))
    with pytest.raises(CheckpointError, match=r"is of speculator 'medusa', schema 1, expected"):
        speculator.load(saved, weights)


@pytest.mark.parametrize("kind", ["target", "tokenizer"])
def test_a_checkpoint_of_another_target_is_refused(
    speculator: Eagle3Speculator, target: TargetSpec, weights: TargetWeights, saved: Path, kind: str
) -> None:
    name = "fingerprint" if kind == "target" else "tokenizer_fingerprint"
    other = dataclasses.replace(target, **{name: "another"})
    with pytest.raises(CheckpointError, match=rf"made for another {kind} than that of 'tiny'"):
        Eagle3Speculator(speculator.options, other).load(saved, weights)


def test_a_checkpoint_that_reads_other_layers_is_refused(
    make_speculator: Callable[..., Eagle3Speculator], weights: TargetWeights, saved: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"reads layers \[1, 2, 3\].*expected \[0, 2, 4\]"):
        make_speculator(aux_layers=(0, 2, 4)).load(saved, weights)


def test_a_config_whose_sizes_differ_from_its_tensors_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path
) -> None:
    edit_config(saved, _set("draft_vocab_size", 95))
    with pytest.raises(CheckpointError, match=r"has shape \[96.*\], expected \[95"):
        speculator.load(saved, weights)


@pytest.mark.parametrize(
    ("name", "value"),
    [("norm_output", True), ("rope_theta", 5.0), ("hidden_size", "many")],
)
def test_a_config_that_contradicts_the_target_or_the_network_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path, name: str, value: object
) -> None:
    edit_config(saved, _set(name, value))
    with pytest.raises(CheckpointError, match=rf"has {name} = {value!r}, expected "):
        speculator.load(saved, weights)


@pytest.mark.parametrize(
    ("name", "value"), [("num_key_value_heads", 3), ("head_dim", 0), ("num_attention_heads", "x")]
)
def test_a_config_with_impossible_heads_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path, name: str, value: object
) -> None:
    edit_config(saved, _set(name, value))
    with pytest.raises(CheckpointError, match=r"config.json of .*; publish it again$"):
        speculator.load(saved, weights)


@pytest.mark.parametrize("size", [0, -4, 257])
def test_an_impossible_vocabulary_size_is_refused(
    speculator: Eagle3Speculator, weights: TargetWeights, saved: Path, size: int
) -> None:
    edit_config(saved, _set("draft_vocab_size", size))
    with pytest.raises(CheckpointError, match=rf"draft_vocab_size = {size}, expected 1 to 256"):
        speculator.load(saved, weights)
