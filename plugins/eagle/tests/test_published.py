"""Published drafters: what is taken over, and what of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from aurora_core.errors import CheckpointError, ConfigError
from aurora_core.interfaces import DraftRequest, Proposal
from aurora_core.records import TargetSpec, Trace
from aurora_core.target.weights import TargetWeights
from aurora_eagle.config import Eagle3Options
from aurora_eagle.model import Eagle3Network, rotary_table
from aurora_eagle.speculator import Eagle3Speculator
from plugins.eagle.tests.published_drafters import (
    DRAFTED,
    HEADS,
    HIDDEN,
    KV_HEADS,
    draft_tensors,
    layer_config,
    native_config,
    speculators_config,
    write,
)

Make = Callable[..., Eagle3Speculator]
LAYERS = (1, 2, 3)
"""Not what EAGLE-3 usually reads of a target so shallow, so that it must be said."""
IDS = "eagle_aux_hidden_state_layer_ids"
MAPS = ("d2t", "t2d")


def imported(make: Make, weights: TargetWeights, folder: Path, **options: Any) -> Eagle3Network:
    return make(start_from=str(folder), **options).build_module(weights, ())  # type: ignore[return-value]


def first_logits(tensors: dict[str, Tensor], config: dict[str, Any], row: Tensor, embedded: Tensor):
    """Return the logits of a drafter's first row by hand: it attends to itself alone."""

    def norm(x: Tensor, name: str) -> Tensor:
        scaled = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        return scaled * tensors[f"{name}.weight"]

    hidden = tensors["fc.weight"] @ row
    normed = norm(hidden, "midlayer.hidden_norm")
    x = torch.cat((norm(embedded, "midlayer.input_layernorm"), normed))
    value = tensors["midlayer.self_attn.v_proj.weight"] @ x
    residual = normed if config.get("norm_before_residual") else hidden
    hidden = residual + tensors["midlayer.self_attn.o_proj.weight"] @ value.repeat(
        HEADS // KV_HEADS
    )
    inner = norm(hidden, "midlayer.post_attention_layernorm")
    gate = functional.silu(tensors["midlayer.mlp.gate_proj.weight"] @ inner)
    up = tensors["midlayer.mlp.up_proj.weight"] @ inner
    hidden = hidden + tensors["midlayer.mlp.down_proj.weight"] @ (gate * up)
    return tensors["lm_head.weight"] @ norm(hidden, "norm")


@pytest.mark.parametrize("layout", ["native", "speculators", "residual", "torch file", "prefixed"])
def test_a_published_drafter_computes_what_it_computed_where_it_came_from(
    make_speculator: Make, weights: TargetWeights, tmp_path: Path, layout: str
) -> None:
    tensors = stored = draft_tensors(weights)
    config = native_config(weights, eagle_config={IDS: list(LAYERS)})
    if layout == "speculators":
        stored, config = draft_tensors(weights, prefix="layers.0."), speculators_config(weights)
    elif layout == "residual":
        config["norm_before_residual"] = True
    elif layout == "prefixed":
        stored = {name if name in MAPS else f"model.{name}": t for name, t in tensors.items()}
    write(tmp_path, config, stored)
    if layout == "torch file":
        torch.save(stored, tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    options = {} if layout == "speculators" else {"start_from_layers": "entering"}
    speculator = make_speculator(start_from=str(tmp_path), **options)
    assert speculator.starts_trained
    assert speculator.needs.aux_layers == ((0, 2, 3) if layout == "speculators" else LAYERS)
    network = speculator.build_module(weights, ())
    assert isinstance(network, Eagle3Network)
    assert network.shape.max_position_embeddings == weights.max_position_embeddings
    assert all(parameter.requires_grad for parameter in network.parameters())

    row = torch.randn(3 * HIDDEN, generator=torch.Generator().manual_seed(1))
    drafter = speculator.drafter(network, dtype=torch.float32, device=torch.device("cpu"))
    for token in (17, 200):
        expected = first_logits(tensors, config, row, weights.embed_tokens[token].float())
        request = DraftRequest(
            request_id=str(token),
            start=0,
            token_ids=torch.tensor([3, token]),
            features={"aux_hidden_states": row[None]},
            num_speculative_tokens=1,
            max_nodes=1,
        )
        (proposal,) = drafter.propose([request])
        best = int(expected.argmax())
        assert list(proposal.token_ids) == [best + int(tensors["d2t"][best])]
        assert proposal.log_probs[0] == pytest.approx(float(expected.log_softmax(-1)[best]))
        hidden = network.fc(row[None])
        x = network.attention_input(torch.tensor([token]), hidden)
        _, values = network.keys_values(x, torch.tensor([0]))
        output = network.finish(hidden, values.repeat_interleave(HEADS // KV_HEADS, 1).flatten(1))
        torch.testing.assert_close(network.lm_head(network.norm(output))[0], expected)


def test_rotary_positions_follow_the_drafters_own_rule(
    make_speculator: Make, weights: TargetWeights, tmp_path: Path
) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rule = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = speculators_config(
        weights, transformer_layer_config={**layer_config(weights), "rope_scaling": rule}
    )
    write(tmp_path / "in", config, draft_tensors(weights))
    speculator = make_speculator(start_from=str(tmp_path / "in"))
    network = speculator.build_module(weights, ())
    speculator.save(network, tmp_path / "out")
    again = speculator.load(tmp_path / "out", weights)
    llama = LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        head_dim=8,
        rope_parameters={**rule, "rope_theta": 500000.0},
    )
    positions = torch.tensor([0, 1, 63, 300])
    cosine, sine = LlamaRotaryEmbedding(llama)(torch.zeros(1), positions[None])
    plain = rotary_table(dataclasses.replace(network.shape, rope_scaling=()), positions)  # type: ignore[arg-type]
    for one in (network, again):
        mine = rotary_table(one.shape, positions)  # type: ignore[arg-type]
        torch.testing.assert_close(mine[0], cosine[0, :, :4], rtol=0, atol=1e-5)
        torch.testing.assert_close(mine[1], sine[0, :, :4], rtol=0, atol=1e-5)
        assert not torch.allclose(mine[0], plain[0])
    assert LlamaConfig.from_pretrained(tmp_path / "out").rope_parameters == llama.rope_parameters


@pytest.mark.parametrize(
    ("named", "convention", "num_layers", "read"),
    [
        (None, None, 12, (2, 6, 9)),
        ([], None, 12, (2, 6, 9)),
        ([2, 6, 9], None, 12, (2, 6, 9)),
        ([1, 5, 8], None, 12, (2, 6, 9)),
        ([1, 5, 8], "entering", 12, (1, 5, 8)),
        ([2, 6, 9], "output", 12, (3, 7, 10)),
        ([0, 4, 11], "output", 12, (1, 5, 12)),
    ],
)
def test_layer_ids_are_taken_in_the_convention_that_is_known(
    make_speculator: Make,
    weights: TargetWeights,
    target: TargetSpec,
    tmp_path: Path,
    named: list[int] | None,
    convention: str | None,
    num_layers: int,
    read: tuple[int, ...],
) -> None:
    deep = dataclasses.replace(target, num_layers=num_layers)
    config = native_config(weights) | ({} if named is None else {"eagle_config": {IDS: named}})
    write(tmp_path, config, draft_tensors(weights))
    options = Eagle3Options(start_from=str(tmp_path), start_from_layers=convention)  # type: ignore[arg-type]
    assert Eagle3Speculator(options, deep).needs.aux_layers == read


def test_layer_ids_without_a_known_meaning_are_refused(
    target: TargetSpec, weights: TargetWeights, tmp_path: Path
) -> None:
    deep = dataclasses.replace(target, num_layers=12)
    options = Eagle3Options(start_from=str(tmp_path))
    write(tmp_path, native_config(weights, eagle_config={IDS: [1, 6, 9]}), draft_tensors(weights))
    with pytest.raises(ConfigError, match=r"names layers \[1, 6, 9\] and not whether .* output$"):
        Eagle3Speculator(options, deep)
    write(tmp_path, speculators_config(weights), draft_tensors(weights))
    output = Eagle3Options(start_from=str(tmp_path), start_from_layers="output")
    with pytest.raises(ConfigError, match=r"always mean what enters a layer; remove"):
        Eagle3Speculator(output, deep)


@pytest.mark.parametrize("layout", ["eagle3", "sglang", "speculators"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_exported_comes_back_and_drafts_the_same_bit_for_bit(
    make_speculator: Make,
    weights: TargetWeights,
    make_trace: Callable[..., Trace],
    tmp_path: Path,
    layout: str,
    dtype: str,
) -> None:
    speculator = make_speculator(export_dtype=dtype)
    trace = make_trace(1)
    torch.manual_seed(3)
    speculator.save(speculator.build_module(weights, [trace]), tmp_path / "version")
    folder = tmp_path / "version"
    if layout != "eagle3":
        folder = tmp_path / layout
        folder.mkdir()
        speculator.export(tmp_path / "version", folder, layout=layout, num_speculative_tokens=3)
    starting = make_speculator(start_from=str(folder), export_dtype=dtype)
    assert starting.needs.aux_layers == speculator.needs.aux_layers
    network = starting.build_module(weights, ())
    original = speculator.load(tmp_path / "version", weights)
    for name, tensor in original.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name
    assert drafts(starting, network, trace) == drafts(speculator, original, trace)
    starting.save(network, tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        again = (tmp_path / "again" / name).read_bytes()
        assert again == (tmp_path / "version" / name).read_bytes()


def drafts(speculator: Eagle3Speculator, network: nn.Module, trace: Trace) -> list[Proposal]:
    drafter = speculator.drafter(network, dtype=torch.bfloat16, device=torch.device("cpu"))
    found = []
    for start, root in ((0, 7), (7, 10), (10, 14)):
        request = DraftRequest(
            request_id="one",
            start=start,
            token_ids=trace.token_ids[start : root + 1],
            features={"aux_hidden_states": trace.features["aux_hidden_states"][start:root]},
            num_speculative_tokens=3,
            max_nodes=3,
        )
        found += drafter.propose([request])
    assert all(len(proposal.token_ids) == 3 for proposal in found)
    return found


def test_maps_that_follow_from_others_may_be_missing(
    make_speculator: Make, weights: TargetWeights, tmp_path: Path
) -> None:
    config, tensors = speculators_config(weights), draft_tensors(weights)
    whole = imported(make_speculator, weights, write(tmp_path / "whole", config, tensors))
    partly = {name: tensor for name, tensor in tensors.items() if name != "t2d"}
    partial = imported(make_speculator, weights, write(tmp_path / "partly", config, partly))
    assert torch.equal(whole.t2d, partial.t2d) and int(partial.t2d.sum()) == DRAFTED

    head = torch.randn(weights.vocab_size, HIDDEN)
    full = {name: tensor for name, tensor in partly.items() if name != "d2t"}
    config["draft_vocab_size"] = None
    write(tmp_path / "full", config, {**full, "lm_head.weight": head})
    network = imported(make_speculator, weights, tmp_path / "full")
    assert torch.equal(network.target_ids, torch.arange(weights.vocab_size))
    assert bool(network.t2d.all())


def test_an_embedding_that_is_the_targets_is_left_to_it(
    make_speculator: Make, weights: TargetWeights, tmp_path: Path
) -> None:
    tensors = draft_tensors(weights)
    for dtype in (torch.float32, torch.float16):
        tensors["embed_tokens.weight"] = weights.embed_tokens.to(dtype)
        write(tmp_path, speculators_config(weights), tensors)
        network = imported(make_speculator, weights, tmp_path)
        assert network.embed_tokens is weights.embed_tokens
    tensors["embed_tokens.weight"] = weights.embed_tokens + 0.01
    write(tmp_path, speculators_config(weights), tensors)
    with pytest.raises(CheckpointError, match=r"has an embedding of its own, which drafters share"):
        imported(make_speculator, weights, tmp_path)
