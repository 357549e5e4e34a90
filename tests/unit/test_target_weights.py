"""The lazily loaded tensors and parsed facts, against transformers' own reading."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from aurora_core.errors import TargetError
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import FAMILIES, make_tiny_target


@pytest.fixture(scope="module", params=[(f, t) for f in FAMILIES for t in (True, False)])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    architecture, tie = request.param
    return make_tiny_target(tmp_path_factory.mktemp("target"), architecture, tie=tie, num_layers=2)


def test_tensors_are_those_that_transformers_loads(directory: Path) -> None:
    weights = TargetWeights(read_target_spec(directory))
    model = AutoModelForCausalLM.from_pretrained(directory)
    expected = model.state_dict()
    torch.testing.assert_close(weights.embed_tokens, expected["model.embed_tokens.weight"])
    torch.testing.assert_close(weights.lm_head, expected["lm_head.weight"])
    torch.testing.assert_close(weights.final_norm, expected["model.norm.weight"])
    for index in range(2):
        layer = weights.layer(index)
        of_layer = {
            name.removeprefix(f"model.layers.{index}."): tensor
            for name, tensor in expected.items()
            if name.startswith(f"model.layers.{index}.")
        }
        assert layer.keys() == of_layer.keys()
        for name, tensor in layer.items():
            torch.testing.assert_close(tensor, of_layer[name], msg=name)
    assert set(weights.names) <= expected.keys()


def test_a_tied_head_is_the_embedding_itself(directory: Path) -> None:
    weights = TargetWeights(directory)
    assert (weights.lm_head is weights.embed_tokens) == weights.tie_word_embeddings


def test_facts_are_those_of_the_configuration_class(directory: Path) -> None:
    weights, config = TargetWeights(directory), AutoConfig.from_pretrained(directory)
    for fact in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "hidden_act",
        "tie_word_embeddings",
    ):
        assert getattr(weights, fact) == getattr(config, fact), fact
    assert weights.num_layers == config.num_hidden_layers
    assert weights.head_dim == config.hidden_size // config.num_attention_heads
    assert weights.rope_theta == config.rope_parameters["rope_theta"]
    assert weights.rope_scaling == {}
    assert weights.config["vocab_size"] == config.vocab_size


def test_facts_left_out_are_the_family_defaults(tmp_path: Path) -> None:
    make_tiny_target(tmp_path, "Qwen3ForCausalLM", num_heads=2, num_kv_heads=2, hidden_size=256)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    for key in ("head_dim", "rms_norm_eps", "rope_parameters", "hidden_act", "attention_bias"):
        del config[key]
    config["num_key_value_heads"] = None
    config["max_position_embeddings"] = 64
    file.write_text(json.dumps(config))
    weights, expected = TargetWeights(tmp_path), AutoConfig.from_pretrained(tmp_path)
    assert weights.head_dim == expected.head_dim == 128
    assert weights.num_key_value_heads == expected.num_key_value_heads == 2
    assert weights.rms_norm_eps == expected.rms_norm_eps
    assert weights.rope_theta == expected.rope_parameters["rope_theta"]
    assert weights.attention_bias is expected.attention_bias is False


def test_biases_are_present_where_the_family_has_them(tmp_path: Path) -> None:
    qwen2 = TargetWeights(make_tiny_target(tmp_path / "qwen2", "Qwen2ForCausalLM"))
    assert qwen2.attention_bias
    assert "self_attn.k_proj.bias" in qwen2.layer(0)
    assert "self_attn.o_proj.bias" not in qwen2.layer(0)
    llama = TargetWeights(make_tiny_target(tmp_path / "llama"))
    assert not llama.attention_bias
    assert not any(name.endswith("bias") for name in llama.layer(0))


def test_a_missing_tensor_or_layer_is_named(directory: Path) -> None:
    weights = TargetWeights(directory)
    with pytest.raises(TargetError, match=r"has no tensor 'model\.nothing'; `names` lists"):
        weights.tensor("model.nothing")
    with pytest.raises(ValueError, match="layer 2 of a target with 2 layers"):
        weights.layer(2)


def test_tensors_are_found_across_shards(tmp_path: Path) -> None:
    whole = TargetWeights(make_tiny_target(tmp_path / "whole"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    sharded = TargetWeights(tmp_path / "sharded")
    assert sharded.names == whole.names
    for name in whole.names:
        assert torch.equal(sharded.tensor(name), whole.tensor(name))


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}},
        {"rope_theta": 100000.0},
        {"rope_theta": 10000.0, "rope_scaling": None},
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    ],
    ids=lambda rope: "-".join(map(str, rope.values()))[:40],
)
def test_rotary_frequencies_are_those_of_transformers(rope: dict[str, Any], tmp_path: Path) -> None:
    make_tiny_target(tmp_path, num_heads=2, hidden_size=64)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    del config["rope_parameters"]
    file.write_text(json.dumps(config | rope))
    weights = TargetWeights(tmp_path)
    frequencies, scaling = weights.rope_inverse_frequencies()
    expected = LlamaRotaryEmbedding(AutoConfig.from_pretrained(tmp_path))
    assert frequencies.shape == (16,) and frequencies.dtype == torch.float32
    torch.testing.assert_close(frequencies, expected.inv_freq, rtol=1e-6, atol=0)
    assert scaling == expected.attention_scaling
    assert weights.rope_theta == expected.config.rope_parameters["rope_theta"]
