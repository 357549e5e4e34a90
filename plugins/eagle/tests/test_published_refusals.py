"""Published drafters that are refused, each in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aurora_core.errors import CheckpointError
from aurora_core.target.weights import TargetWeights
from aurora_eagle.speculator import Eagle3Speculator
from plugins.eagle.tests.published_drafters import (
    DRAFTED,
    HIDDEN,
    draft_tensors,
    native_config,
    speculators_config,
    write,
)

Make = Callable[..., Eagle3Speculator]
LAYERS = (1, 2, 3)
IDS = "eagle_aux_hidden_state_layer_ids"


def imported(make: Make, weights: TargetWeights, folder: Path, **options: Any) -> None:
    make(start_from=str(folder), **options).build_module(weights, ())


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
