"""Real weights of a run, spoiled, exported and scored, as the poison experiment publishes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aurora_core import run_replay
from aurora_core.acceptance import holdout_acceptance_length
from aurora_core.config import RunConfig
from aurora_core.errors import ConfigError
from aurora_core.experiments.poisoned_weights import POISONS, prepare_poisons, spoil
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.toy_speculator import ToySpeculator


@pytest.mark.parametrize("name", POISONS)
def test_every_trainable_tensor_is_spoiled_and_no_other(
    name: str, speculator: ToySpeculator, weights: TargetWeights, make_trace: Any
) -> None:
    drafter = speculator.build_module(weights, [make_trace(0)])
    before = {key: tensor.clone() for key, tensor in drafter.named_parameters()}
    spoil(name, drafter, seed=0)
    for key, tensor in drafter.named_parameters():
        assert torch.equal(tensor, before[key]) != tensor.requires_grad, key
        assert torch.isfinite(tensor).all()
    if name == "shuffled":
        for key, tensor in drafter.named_parameters():
            assert torch.equal(tensor.flatten().sort()[0], before[key].flatten().sort()[0])


@pytest.fixture
def world(
    tmp_path: Any, monkeypatch: Any, speculator: ToySpeculator, weights: TargetWeights,
    target: Any, make_trace: Any,
) -> Any:  # fmt: skip
    """A run of the toy that left one trained version, and its held-out traces."""
    from aurora_core.versions import VersionStore

    traces = [make_trace(seed) for seed in range(12)]
    torch.manual_seed(0)
    drafter = speculator.build_module(weights, traces)
    optimizer = torch.optim.Adam([w for w in drafter.parameters() if w.requires_grad], lr=0.02)
    batch = speculator.collate(traces)
    for _ in range(25):
        output = speculator.loss(drafter, batch)
        optimizer.zero_grad()
        (output.loss_sum / output.weight_sum).backward()
        optimizer.step()
    VersionStore(tmp_path / "run" / "versions").stage(
        7,
        lambda path: speculator.save(drafter, path),
        parent=None,
        speculator="toy",
        target_fingerprint=target.fingerprint,
        global_step=25,
        num_tokens_trained=1,
    )
    held_out = [make_trace(seed) for seed in range(20, 36)]
    monkeypatch.setattr(
        run_replay, "build_component",
        lambda plugins, kind, section, **options: speculator if kind == "speculators" else None,
    )  # fmt: skip
    monkeypatch.setattr(run_replay, "held_out_traces", lambda sink, count: held_out[:count])
    config = RunConfig.model_validate(
        {"target": str(target.path), "speculator": "toy", "backend": "fake"}
    )

    def prepare(**options: Any) -> Any:
        return prepare_poisons(
            config, None, source=tmp_path / "run", champion=7, names=POISONS,  # type: ignore[arg-type]  # no plugin is asked
            folder=tmp_path / "poisons", **{"num_traces": 16, "seed": 0} | options,
        )  # fmt: skip

    return prepare


def test_honest_scores_are_those_of_the_spoiled_weights_and_lies_are_not(world: Any) -> None:
    poisons = world()
    assert tuple(one.name for one in poisons) == POISONS
    for poison in poisons:
        champion = holdout_acceptance_length(poison.honest.num_anchors, poison.honest.live_accepted)
        claimed = holdout_acceptance_length(
            poison.lying.num_anchors, poison.lying.candidate_accepted
        )
        assert poison.honest.live_version == 7 and len(poison.honest.num_anchors) == 16
        assert poison.acceptance_length < champion - 0.1 < champion + 0.1 < claimed, poison.name
        assert (poison.folder / "model.safetensors").exists()


def test_run_without_held_out_traces_is_refused(world: Any) -> None:
    with pytest.raises(ConfigError, match="holds no held-out traces to score poisoned versions"):
        world(num_traces=0)
