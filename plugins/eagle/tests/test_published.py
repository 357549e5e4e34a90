"""Published drafters: what is taken over, and everything that is refused."""

from __future__ import annotations

import dataclasses
import json
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


REFUSED_TENSORS = {
    "missing": ({"fc.weight": None}, r"lacks \['fc.weight'\]; set `start_from`"),
    "no map": ({"d2t": None}, r"lacks \['d2t'\]"),
    "no head": ({"lm_head.weight": None}, r"lacks \['lm_head.weight'\]"),
    "unknown": ({"fc.bias": torch.zeros(HIDDEN)}, r"has the unknown \['fc.bias'\]; set"),
    "second layer": (
        {"layers.1.mlp.up_proj.weight": torch.zeros(2)},
        r"unknown \['layers.1.mlp.up_proj.weight'\]",
    ),
    "twice": ({"layers.0.hidden_norm.weight": torch.ones(HIDDEN)}, r"'midlayer.hid.* twice; set"),
    "shape": (
        {"fc.weight": torch.zeros(HIDDEN, 2 * HIDDEN)},
        r"'fc.weight' of shape \[32, 64\], where its config.json and the target make \[32, 96\]",
    ),
    "other vocabulary": (
        {"t2d": torch.zeros(300, dtype=torch.bool)},
        r"'t2d' of shape \[300\], where .* make \[256\]",
    ),
    "fewer drafted": (
        {"lm_head.weight": torch.zeros(63, HIDDEN)},
        r"'lm_head.weight' of shape \[63, 32\], where .* make \[64, 32\]",
    ),
    "not finite": ({"norm.weight": torch.full((HIDDEN,), float("nan"))}, r"'norm.*not finite"),
    "quantised": (
        {"fc.weight": torch.zeros(HIDDEN, 3 * HIDDEN, dtype=torch.float8_e4m3fn)},
        r"'fc.weight' in torch.float8_e4m3fn, and weights of 16 or 32 bits are known",
    ),
    "map of another type": (
        {"t2d": torch.zeros(256, dtype=torch.int64)},
        r"'t2d' in torch.int64, and torch.bool are known",
    ),
    "ids for offsets": (
        {"d2t": torch.arange(DRAFTED) * 4},
        r"invalid vocabulary map: d2t leads to ids outside 0 to 255",
    ),
    "map of others": (
        {"t2d": torch.arange(256) < DRAFTED},
        r"invalid vocabulary map: t2d does not mark exactly the ids of d2t",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED_TENSORS.values(), ids=REFUSED_TENSORS)
def test_tensors_that_are_not_those_of_such_a_drafter_are_refused(
    make_speculator: Make,
    weights: TargetWeights,
    tmp_path: Path,
    changes: dict[str, Tensor | None],
    message: str,
) -> None:
    tensors = draft_tensors(weights) | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    write(tmp_path, speculators_config(weights), kept)
    with pytest.raises(CheckpointError, match=message) as refusal:
        imported(make_speculator, weights, tmp_path)
    assert "\n" not in str(refusal.value)


REFUSED_CONFIGS = {
    "other hidden size": ({"hidden_size": 64}, r"has hidden_size = 64, and target 'tiny' has 32"),
    "wider target": ({"target_hidden_size": 64}, r"target_hidden_size = 64, and target 'tiny' has"),
    "other vocabulary": ({"vocab_size": 300}, r"has vocab_size = 300, and target 'tiny' has 256"),
    "two layers": ({"num_hidden_layers": 2}, r"num_hidden_layers = 2, and only 1 is known"),
    "bias": ({"attention_bias": True}, r"attention_bias = True, and only False is known"),
    "norms of EAGLE-3.1": ({"fc_norm": True}, r"fc_norm = True, and only False is known"),
    "fed back after the norm": ({"norm_output": True}, r"norm_output = True, and only False"),
    "norm before fc": ({"eagle_config": {"norm_before_fc": True}}, r"norm_before_fc = True"),
    "no auxiliary states": ({"eagle_config": {"use_aux_hidden_state": False}}, r"use_aux_hidden"),
    "layers of another kind": ({"model_type": "qwen3"}, r"has layers of 'qwen3'; drafters with"),
    "quantised": ({"quantization_config": {"bits": 4}}, r"quantization_config = .*only None"),
    "scaled otherwise": ({"rope_scaling": {"type": "yarn"}}, r"rope scaling 'yarn', known are"),
    "incomplete": ({"intermediate_size": None}, r"cannot be followed \(TypeError"),
    "heads that do not divide": ({"num_key_value_heads": 3}, r"num_key_value_heads = 3, expected"),
    "of another target": ({"aurora": {"target_fingerprint": "x"}}, r"made for another target than"),
    "two layers read": ({IDS: [1, 2]}, r"reads what enters layers \[1, 2\], and 3 increasing"),
    "a layer too deep": ({IDS: [1, 2, 5]}, r"layers \[1, 2, 5\], and 3 increasing ones from 0 to"),
    "layers out of order": ({IDS: [3, 2, 1]}, r"layers \[3, 2, 1\], and 3 increasing ones"),
    "of another algorithm": (
        {"speculators_model_type": "dflash", "transformer_layer_config": {}},
        r"is of a 'dflash' drafter, and not of EAGLE-3",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED_CONFIGS.values(), ids=REFUSED_CONFIGS)
def test_configs_that_say_something_else_are_refused(
    make_speculator: Make,
    weights: TargetWeights,
    tmp_path: Path,
    changes: dict[str, Any],
    message: str,
) -> None:
    config = native_config(weights, eagle_config={IDS: list(LAYERS)}) | changes
    if IDS in changes:
        del config["eagle_config"]
    write(tmp_path, config, draft_tensors(weights))
    with pytest.raises(CheckpointError, match=message) as refusal:
        imported(make_speculator, weights, tmp_path, start_from_layers="entering")
    assert "\n" not in str(refusal.value)


def test_a_speculators_config_that_leaves_the_residual_open_is_refused(
    make_speculator: Make, weights: TargetWeights, tmp_path: Path
) -> None:
    config = speculators_config(weights)
    del config["norm_before_residual"]
    write(tmp_path, config, draft_tensors(weights))
    with pytest.raises(CheckpointError, match=r"lacks norm_before_residual, for which its readers"):
        imported(make_speculator, weights, tmp_path)


def test_layers_that_contradict_the_drafter_are_refused(
    make_speculator: Make, weights: TargetWeights, tmp_path: Path
) -> None:
    write(tmp_path, speculators_config(weights), draft_tensors(weights))
    with pytest.raises(CheckpointError, match=r"layers \[0, 2, 3\], and `aux_layers` says \[1, 2"):
        imported(make_speculator, weights, tmp_path, aux_layers=LAYERS)


class _Dangerous:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return print, ("code of a checkpoint was run",)


def test_what_is_missing_damaged_or_holds_code_is_refused(
    make_speculator: Make,
    weights: TargetWeights,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(CheckpointError, match=r"config.json of .* cannot be read \(FileNotFound"):
        imported(make_speculator, weights, tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config.json of .* cannot be read"):
        imported(make_speculator, weights, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(speculators_config(weights)))
    with pytest.raises(CheckpointError, match=r"has none of model.safetensors, pytorch_model.bin"):
        imported(make_speculator, weights, tmp_path)
    torch.save({"fc.weight": _Dangerous()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"cannot be read .*torch file of plain tensors"):
        imported(make_speculator, weights, tmp_path)
    assert "code" not in capsys.readouterr().out
