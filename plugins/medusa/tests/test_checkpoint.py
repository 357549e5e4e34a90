"""The checkpoint in vLLM's layout: what it holds, and that it comes back whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

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
