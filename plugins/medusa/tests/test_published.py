"""Published heads in every layout give the same network, and what is none is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from aurora_core.errors import CheckpointError
from aurora_core.records import Trace
from aurora_core.target.weights import TargetWeights
from aurora_medusa.model import MedusaNetwork
from aurora_medusa.speculator import MedusaSpeculator

HEADS, BLOCKS, HIDDEN, VOCAB = 3, 2, 32, 256
Make = Callable[..., MedusaSpeculator]


@pytest.fixture(scope="module")
def original() -> dict[str, Tensor]:
    """Heads under the names of FasterDecoding: blocks, then an output matrix."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return 0.2 * torch.randn(shape, generator=generator)

    tensors = {}
    for head in range(HEADS):
        for block in range(BLOCKS):
            tensors[f"{head}.{block}.linear.weight"] = noise(HIDDEN, HIDDEN)
            tensors[f"{head}.{block}.linear.bias"] = noise(HIDDEN)
        tensors[f"{head}.{BLOCKS}.weight"] = noise(VOCAB, HIDDEN)
    return tensors


def vllm_names(original: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for head in range(HEADS):
        for block in range(BLOCKS):
            for kind in ("weight", "bias"):
                name = f"blocks.{head}.layers.{block}.{kind}"
                renamed[name] = original[f"{head}.{block}.linear.{kind}"]
        renamed[f"lm_heads.{head}.weight"] = original[f"{head}.{BLOCKS}.weight"]
    return renamed


def logits_by_hand(tensors: dict[str, Tensor], head: int, x: Tensor) -> Tensor:
    for block in range(BLOCKS):
        x = x + functional.silu(
            tensors[f"{head}.{block}.linear.weight"] @ x + tensors[f"{head}.{block}.linear.bias"]
        )
    return tensors[f"{head}.{BLOCKS}.weight"] @ x


def imported(
    make_speculator: Make, weights: TargetWeights, path: Path, **options: object
) -> MedusaNetwork:
    speculator = make_speculator(start_from=str(path), **options)
    return speculator.build_module(weights, [])  # type: ignore[return-value]


@pytest.mark.parametrize(
    "layout", ["torch file", "safetensors", "vllm", "prefixed", "medusa_heads", "directory"]
)
def test_every_layout_computes_what_the_published_heads_compute(
    make_speculator: Make,
    weights: TargetWeights,
    original: dict[str, Tensor],
    tmp_path: Path,
    layout: str,
) -> None:
    path = tmp_path / "medusa_lm_head.safetensors"
    if layout == "torch file":
        path = tmp_path / "medusa_lm_head.pt"
        torch.save(original, path)
    elif layout == "vllm":
        path = tmp_path / "model.safetensors"
        save_file(vllm_names(original), path)
    elif layout in ("prefixed", "medusa_heads"):
        prefix = "medusa_head." if layout == "prefixed" else "model.medusa_heads."
        save_file({f"{prefix}{name}": tensor for name, tensor in original.items()}, path)
    else:
        save_file(original, path)
    network = imported(
        make_speculator, weights, tmp_path if layout == "directory" else path, num_heads=1
    )
    assert (network.shape.num_heads, network.shape.num_blocks) == (HEADS, BLOCKS)
    x = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(1))
    for head, (read, matrix) in enumerate(zip(network(x), network.output_heads, strict=True)):
        expected = logits_by_hand(original, head, x)[network.token_map]
        torch.testing.assert_close(matrix @ read, expected)


def test_heads_without_a_matrix_share_the_targets(
    make_speculator: Make, weights: TargetWeights, original: dict[str, Tensor], tmp_path: Path
) -> None:
    blocks = {name: tensor for name, tensor in original.items() if "linear" in name}
    save_file(blocks, tmp_path / "heads.safetensors")
    network = imported(make_speculator, weights, tmp_path / "heads.safetensors", own_heads=True)
    assert not network.shape.own_heads
    assert torch.equal(network.output_heads[1], weights.lm_head[network.token_map])


def test_blocks_without_biases_get_zeros(
    make_speculator: Make, weights: TargetWeights, original: dict[str, Tensor], tmp_path: Path
) -> None:
    tensors = {name: t for name, t in vllm_names(original).items() if not name.endswith("bias")}
    save_file(tensors, tmp_path / "model.safetensors")
    network = imported(make_speculator, weights, tmp_path)
    assert not any(layer.bias.any() for block in network.blocks for layer in block.layers)
    assert torch.equal(network.blocks[2].layers[1].weight, original["2.1.linear.weight"])


@pytest.mark.parametrize("own_heads", [False, True])
def test_what_this_plugin_saves_is_a_published_layout_too(
    make_speculator: Make,
    weights: TargetWeights,
    make_trace: Callable[..., Trace],
    tmp_path: Path,
    own_heads: bool,
) -> None:
    speculator = make_speculator(own_heads=own_heads)
    network = speculator.build_module(weights, [make_trace(1)])
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)
    speculator.save(network, tmp_path)
    again = make_speculator(start_from=str(tmp_path)).build_module(weights, [make_trace(1)])
    for name, tensor in network.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_only_heads_for_the_whole_vocabulary_are_served_before_any_trace(
    make_speculator: Make, weights: TargetWeights, original: dict[str, Tensor], tmp_path: Path
) -> None:
    """A part of it is chosen from the first traces."""
    save_file(original, tmp_path / "model.safetensors")
    assert not make_speculator(draft_vocab_size=VOCAB).starts_trained
    assert not make_speculator(start_from=str(tmp_path), draft_vocab_size=96).starts_trained
    whole = make_speculator(start_from=str(tmp_path), draft_vocab_size=VOCAB)
    assert whole.starts_trained
    network = whole.build_module(weights, ())
    assert torch.equal(network.output_heads[1], original[f"1.{BLOCKS}.weight"])


def test_a_cut_vocabulary_that_lacks_tokens_is_refused(
    make_speculator: Make, weights: TargetWeights, make_trace: Callable[..., Trace], tmp_path: Path
) -> None:
    speculator = make_speculator(own_heads=True, draft_vocab_size=64)
    speculator.save(speculator.build_module(weights, []), tmp_path)
    with pytest.raises(CheckpointError, match=r"32 tokens of the draft vocabulary are not in 'tok"):
        imported(make_speculator, weights, tmp_path)


def edited(original: dict[str, Tensor], **changes: Tensor | None) -> dict[str, Tensor]:
    merged = original | {name.replace("_", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in merged.items() if tensor is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"1_0_linear_weight": None}, r"lack \['blocks.1.layers.0.weight'\]; give"),
        ({"1_2_weight": None}, r"lack \['lm_heads.1.weight'\]"),
        ({"other_thing": torch.zeros(2)}, r"have the unknown \['other.thing'\]"),
        ({"0_0_linear_weight": torch.zeros(32, 16)}, r"shape \[32, 16\], expected \[32, 32\]"),
        ({"2_2_weight": torch.zeros(100, 32)}, r"'lm_heads.2.weight'.*\[100, 32\], expected 256"),
        ({"0_1_linear_bias": torch.full((32,), float("nan"))}, r"'blocks.0.layers.1.bias'.*finite"),
        ({"lm__head_weight": torch.zeros(256, 32)}, r"have the unknown \['lm..head.weight'\]"),
    ],
)
def test_heads_that_are_not_whole_or_of_another_size_are_refused(
    make_speculator: Make,
    weights: TargetWeights,
    original: dict[str, Tensor],
    tmp_path: Path,
    changes: dict[str, Tensor | None],
    message: str,
) -> None:
    save_file(edited(original, **changes), tmp_path / "heads.safetensors")
    with pytest.raises(CheckpointError, match=message):
        imported(make_speculator, weights, tmp_path / "heads.safetensors")


def test_two_kinds_of_output_matrices_are_refused(
    make_speculator: Make, weights: TargetWeights, original: dict[str, Tensor], tmp_path: Path
) -> None:
    tensors = vllm_names(original) | {"lm_head.weight": torch.zeros(VOCAB, HIDDEN)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"have both 'lm_head.weight' and 'lm_heads.0.weight"):
        imported(make_speculator, weights, tmp_path)


def test_two_layouts_in_one_file_are_refused(
    make_speculator: Make, weights: TargetWeights, original: dict[str, Tensor], tmp_path: Path
) -> None:
    save_file(
        {name: tensor.clone() for name, tensor in (original | vllm_names(original)).items()},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(CheckpointError, match=r"name a tensor twice"):
        imported(make_speculator, weights, tmp_path)


class _Dangerous:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return print, ("code of a checkpoint was run",)


def test_a_torch_file_that_holds_code_is_refused_and_not_run(
    make_speculator: Make,
    weights: TargetWeights,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.save({"0.0.linear.weight": _Dangerous()}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match=r"cannot be read .*torch file of plain tensors"):
        imported(make_speculator, weights, tmp_path)
    assert "code" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [[1, 2], {"0.0.linear.weight": 3}])
def test_a_torch_file_of_something_else_is_refused(
    make_speculator: Make, weights: TargetWeights, tmp_path: Path, content: object
) -> None:
    torch.save(content, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match=r"not a dictionary of tensors; give a state dict"):
        imported(make_speculator, weights, tmp_path)


def test_what_is_missing_damaged_or_of_another_model_is_refused(
    make_speculator: Make, weights: TargetWeights, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"has none of model.safetensors, medusa_lm_head"):
        imported(make_speculator, weights, tmp_path)
    with pytest.raises(CheckpointError, match=r"nowhere.pt' cannot be read"):
        imported(make_speculator, weights, tmp_path / "nowhere.pt")
    (tmp_path / "model.safetensors").write_bytes(b"12")
    with pytest.raises(CheckpointError, match=r"cannot be read"):
        imported(make_speculator, weights, tmp_path)
    save_file({"model.norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"holds no Medusa heads, but \['norm.weight'\]"):
        imported(make_speculator, weights, tmp_path)
