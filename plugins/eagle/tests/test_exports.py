"""Versions in the layouts of others: every flag is there, and what cannot be held is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from aurora_core.errors import CheckpointError
from aurora_core.records import TargetSpec
from aurora_core.target.weights import TargetWeights
from aurora_eagle.config import Eagle3Options
from aurora_eagle.speculator import Eagle3Speculator

Make = Callable[..., Eagle3Speculator]


@pytest.fixture
def exported(
    make_speculator: Make, weights: TargetWeights, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """Return a function that exports a new drafter and returns its config.json."""

    def export(layout: str, *, target: TargetSpec | None = None, **options: Any) -> dict[str, Any]:
        speculator = make_speculator(**options)
        speculator.save(speculator.build_module(weights, ()), tmp_path / "version")
        (tmp_path / "out").mkdir()
        exporter = speculator if target is None else type(speculator)(speculator.options, target)
        exporter.export(
            tmp_path / "version", tmp_path / "out", layout=layout, num_speculative_tokens=5
        )
        content: dict[str, Any] = json.loads((tmp_path / "out" / "config.json").read_text())
        return content

    return export


def test_speculators_config_says_everything_that_its_readers_default_differently(
    exported: Callable[..., dict[str, Any]], target: TargetSpec, weights: TargetWeights
) -> None:
    config = exported("speculators", aux_layers=(0, 2, 4))
    assert config["speculators_model_type"] == "eagle3"
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        assert config[flag] is False
    assert config["embed_requires_grad"] is False
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 2, 4]
    assert (config["draft_vocab_size"], config["target_hidden_size"]) == (96, 32)
    spoken = config["speculators_config"]
    assert spoken["default_proposal_method"] == spoken["proposal_methods"][0]["proposal_type"]
    assert spoken["proposal_methods"][0]["speculative_tokens"] == 5
    assert spoken["verifier"] == {
        "name_or_path": target.path,
        "architectures": ["LlamaForCausalLM"],
    }
    layer = config["transformer_layer_config"]
    assert layer["model_type"] == "llama" and layer["num_hidden_layers"] == 1
    assert layer["rope_parameters"] == {"rope_type": "default", "rope_theta": weights.rope_theta}
    assert layer["vocab_size"] == target.vocab_size
    assert layer["tie_word_embeddings"] is layer["attention_bias"] is layer["mlp_bias"] is False


def test_a_target_from_a_hub_is_named_by_its_id(
    exported: Callable[..., dict[str, Any]], target: TargetSpec
) -> None:
    config = exported("speculators", target=dataclasses.replace(target, name="owner/model"))
    assert config["speculators_config"]["verifier"]["name_or_path"] == "owner/model"


def test_weights_are_the_versions_bit_for_bit(
    exported: Callable[..., dict[str, Any]], weights: TargetWeights, tmp_path: Path
) -> None:
    exported("speculators", export_dtype="bfloat16")
    own = load_file(tmp_path / "version" / "model.safetensors")
    others = load_file(tmp_path / "out" / "model.safetensors")
    embedding = others.pop("embed_tokens.weight")
    assert embedding.dtype == weights.embed_tokens.dtype
    assert torch.equal(embedding, weights.embed_tokens)
    assert len(own) == len(others) and "layers.0.hidden_norm.weight" in others
    for name, tensor in own.items():
        other = others[name.replace("midlayer.", "layers.0.")]
        assert other.dtype == tensor.dtype and torch.equal(other, tensor), name


def test_sglang_is_told_what_leaves_the_layer_before(
    exported: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    config = exported("sglang", aux_layers=(1, 2, 3))
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    own = json.loads((tmp_path / "version" / "config.json").read_text())
    assert own["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    weights = (tmp_path / "version" / "model.safetensors").read_bytes()
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("layers", [(0, 1, 2), (1, 2, 4)])
def test_layers_that_sglang_cannot_record_are_refused(
    exported: Callable[..., dict[str, Any]], layers: tuple[int, ...]
) -> None:
    with pytest.raises(CheckpointError, match=r"and SGLang records what enters 1 to 3 of target"):
        exported("sglang", aux_layers=layers)


def test_a_residual_that_sglang_does_not_know_is_refused(
    target: TargetSpec, make_speculator: Make, weights: TargetWeights, tmp_path: Path
) -> None:
    speculator = make_speculator()
    module = speculator.build_module(weights, ())
    module.shape = dataclasses.replace(module.shape, norm_before_residual=True)  # type: ignore[arg-type]
    speculator.save(module, tmp_path)
    other = Eagle3Speculator(Eagle3Options(), target)
    with pytest.raises(CheckpointError, match=r"has norm_before_residual, which SGLang does not"):
        other.export(tmp_path, tmp_path / "out", layout="sglang", num_speculative_tokens=3)


def test_the_command_that_serves_an_export_names_every_flag_of_its_engine(tmp_path: Path) -> None:
    def command(layout: str) -> list[str]:
        return list(
            Eagle3Speculator.serving_command(
                tmp_path, layout=layout, target="owner/model", num_speculative_tokens=5
            )
        )

    program, subcommand, *pairs = command("sglang")
    assert (program, subcommand) == ("sglang", "serve")
    assert dict(zip(pairs[::2], pairs[1::2], strict=True)) == {
        "--model-path": "owner/model",
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": str(tmp_path),
        "--speculative-num-steps": "5",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "6",
    }
    for layout in ("eagle3", "speculators"):
        *start, drafting = command(layout)
        assert start == ["vllm", "serve", "owner/model", "--speculative-config"]
        assert json.loads(drafting) == {
            "method": "eagle3",
            "model": str(tmp_path),
            "num_speculative_tokens": 5,
        }
    assert command("module") == []
