"""Registration, options, needs, and the three target families."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from aurora_core.errors import ConfigError
from aurora_core.records import TargetSpec
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import FAMILIES, make_tiny_target
from aurora_core.testing.traces import make_trace as make_random_trace
from aurora_eagle import plugin
from aurora_eagle.config import Eagle3Options
from aurora_eagle.speculator import Eagle3Speculator


def test_registration_names_an_importable_class() -> None:
    (registration,) = plugin.aurora_register_speculators()
    module, _, name = registration.target.partition(":")
    assert registration.name == "eagle3"
    assert getattr(__import__(module, fromlist=[name]), name) is Eagle3Speculator


def test_plugin_and_speculator_import_without_torch() -> None:
    code = (
        "import sys; import aurora_eagle.plugin, aurora_eagle.speculator; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=_environment()).returncode == 0


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path)}


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ValidationError, match="num_layers"):
        Eagle3Options.model_validate({"num_layers": 2})


def test_how_to_draft_may_change_while_a_lineage_goes_on() -> None:
    assert Eagle3Options.serving_only < set(Eagle3Options.model_fields)
    assert "tree_width" in Eagle3Options.serving_only
    assert "training_steps" not in Eagle3Options.serving_only


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [(30, (2, 15, 27)), (7, (2, 3, 4)), (6, (1, 3, 5)), (4, (1, 2, 3))],
)
def test_layers_are_chosen_by_depth(
    target: TargetSpec, num_layers: int, expected: tuple[int, ...]
) -> None:
    deep = dataclasses.replace(target, num_layers=num_layers)
    assert Eagle3Speculator(Eagle3Options(), deep).needs.aux_layers == expected


def test_a_target_too_shallow_for_a_choice_asks_for_one(target: TargetSpec) -> None:
    shallow = dataclasses.replace(target, num_layers=3)
    with pytest.raises(ConfigError, match=r"'tiny' has only 3 layers.*set `aux_layers`.*0 to 3"):
        Eagle3Speculator(Eagle3Options(), shallow)
    chosen = Eagle3Options(aux_layers=(0, 1, 3))
    assert Eagle3Speculator(chosen, shallow).needs.aux_layers == (0, 1, 3)


@pytest.mark.parametrize("layers", [(1, 1, 2), (0, 1, 5), (-1, 1, 2)])
def test_layers_that_repeat_or_do_not_exist_are_refused(
    target: TargetSpec, layers: tuple[int, int, int]
) -> None:
    with pytest.raises(ConfigError, match=r"expected 3 different layers from 0 to 4 of"):
        Eagle3Speculator(Eagle3Options(aux_layers=layers), target)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("tie", [True, False])
def test_a_new_drafter_fits_every_target_family(
    tmp_path: Path, architecture: str, tie: bool
) -> None:
    target = read_target_spec(make_tiny_target(tmp_path, architecture, tie=tie))
    weights = TargetWeights(target)
    speculator = Eagle3Speculator(Eagle3Options(draft_vocab_size=64), target)
    traces = [
        make_random_trace(
            seed,
            vocab_size=256,
            hidden_size=32,
            dtype=torch.float32,
            target_fingerprint=target.fingerprint,
        )
        for seed in range(2)
    ]
    network = speculator.build_module(weights, traces)
    assert torch.equal(network.target_head, weights.lm_head)
    assert torch.equal(network.lm_head.weight, weights.lm_head[network.target_ids].float())
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    output = speculator.loss(network, speculator.collate(traces))
    output.loss_sum.backward()
    assert torch.isfinite(output.loss_sum)
    speculator.save(network, tmp_path / "draft")
    speculator.load(tmp_path / "draft", weights)


def test_a_drafter_from_the_target_starts_as_its_last_layer(
    make_speculator: Callable[..., Eagle3Speculator], weights: TargetWeights
) -> None:
    layer = weights.layer(3)
    started = make_speculator().build_module(weights, [])
    assert torch.equal(started.midlayer.mlp.down_proj.weight, layer["mlp.down_proj.weight"])
    identity = started.fc.weight[:, -32:]
    assert torch.allclose(identity.diagonal(), torch.ones(32), atol=0.2)
    bare = make_speculator(initialise_from_target=False).build_module(weights, [])
    assert not torch.equal(bare.midlayer.mlp.down_proj.weight, layer["mlp.down_proj.weight"])
    assert torch.equal(bare.norm.weight, torch.ones(32))


def test_neither_checkpoint_nor_optimizer_sees_the_targets_own_tensors(
    speculator: Eagle3Speculator, weights: TargetWeights
) -> None:
    network = speculator.build_module(weights, [])
    names = {name for name, _ in network.named_parameters()} | set(network.state_dict())
    assert not any("embed" in name or "target" in name for name in names)
    assert network.embed_tokens.data_ptr() == weights.embed_tokens.data_ptr()
