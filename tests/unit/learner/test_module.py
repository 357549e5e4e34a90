from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor, nn

from aurora_core.config import LearnerSection
from aurora_core.interfaces import LossOutput
from aurora_core.learner.module import LearnerModule
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.toy_speculator import ToySpeculator


class Scripted(ToySpeculator):
    """The toy, whose loss misbehaves as the batch asks for."""

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        output = super().loss(module, batch)
        if "nan_loss" in batch:
            return replace(output, loss_sum=output.loss_sum * float("nan"))
        if "nan_gradient" in batch:
            # The loss is 0, the gradient of the root is not finite.
            return replace(output, loss_sum=(0.0 * module.cell.weight).sqrt().sum())
        return output


class Batches:
    """An iterable that Lightning does not take for a collection of loaders."""

    def __init__(self, batches: list[dict[str, Tensor]]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self.batches)


@pytest.fixture
def fit(target: Any, weights: TargetWeights, make_trace: Any) -> Any:
    def fit_on(batches: list[str], **options: Any) -> tuple[LearnerModule, lightning.Trainer]:
        torch.manual_seed(0)
        speculator = Scripted(Scripted.Config(), target)
        traces = [make_trace(seed) for seed in range(4)]
        empty = [make_trace(9, num_tokens=6, prompt_len=5)]
        module = LearnerModule(
            speculator,
            speculator.build_module(weights, traces),
            LearnerSection(**({"warmup_steps": 0} | options)),
            lineage={},
        )
        kinds = {
            "good": speculator.collate(traces),
            "empty": speculator.collate(empty),
            "nan_loss": speculator.collate(traces) | {"nan_loss": torch.ones(())},
            "nan_gradient": speculator.collate(traces) | {"nan_gradient": torch.ones(())},
        }
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, Batches([kinds[kind] for kind in batches]))
        return module, trainer

    return fit_on


def weights_of(module: LearnerModule) -> dict[str, Tensor]:
    return dict(module.drafter.state_dict())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", "empty"),
        ("nan_loss", "non_finite_loss"),
        ("nan_gradient", "non_finite_gradient"),
    ],
)
def test_a_bad_batch_changes_nothing_but_the_count(fit: Any, kind: str, reason: str) -> None:
    module, trainer = fit(["good", "good", kind])
    assert module.outcome.skipped == reason
    assert module.num_skipped_batches == 1 and trainer.global_step == 2
    assert all(tensor.isfinite().all() for tensor in weights_of(module).values())
    without, _ = fit(["good", "good"])
    for name, tensor in weights_of(without).items():
        assert torch.equal(tensor, weights_of(module)[name]), name
    assert module.num_tokens_trained == without.num_tokens_trained
    # Nor is the optimizer disturbed: the next good step is what it would have been.
    with_bad, _ = fit(["good", "good", kind, "good"])
    without, _ = fit(["good", "good", "good"])
    for name, tensor in weights_of(without).items():
        assert torch.equal(tensor, weights_of(with_bad)[name]), name


def test_bad_batches_count_towards_the_pause(fit: Any) -> None:
    module, _ = fit(["nan_loss"] * 20)
    assert module.health.exceeded


def test_training_lowers_the_loss(fit: Any) -> None:
    rates = {"matrix_learning_rate": 0.05, "learning_rate": 0.05}
    first, _ = fit(["good"], **rates)
    last, _ = fit(["good"] * 40, **rates)
    assert last.outcome.loss < 0.5 * first.outcome.loss


def test_the_learning_rates_rise_linearly_and_stay(fit: Any) -> None:
    rates = []
    for num_batches in range(6):
        _, trainer = fit(["good"] * num_batches + ["empty"], warmup_steps=3)
        matrices, others = trainer.optimizers[0].param_groups
        rates.append((round(matrices["lr"], 6), round(others["lr"], 6)))
    assert rates == [
        (0.0025, 0.00025),
        (0.005, 0.0005),
        (0.0075, 0.00075),
        (0.01, 0.001),
        (0.01, 0.001),
        (0.01, 0.001),
    ]


def test_gradients_are_clipped_to_the_limit(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    from aurora_core.learner import muon

    step = muon.MuonWithAdamW.step

    def recording_step(self: Any, closure: Any = None) -> Any:
        gradients = [w.grad for group in self.param_groups for w in group["params"]]
        norms.append(float(nn.utils.get_total_norm([g for g in gradients if g is not None])))
        return step(self, closure)

    monkeypatch.setattr(muon.MuonWithAdamW, "step", recording_step)
    module, _ = fit(["good"], gradient_clip=0.01)
    assert norms[0] == pytest.approx(0.01, rel=1e-3)
    assert module.outcome.gradient_norm > 0.1
    fit(["good"], gradient_clip=0.0)
    assert norms[1] == pytest.approx(module.outcome.gradient_norm, rel=1e-3)


def test_the_average_follows_good_steps_only(fit: Any) -> None:
    module, _ = fit(["good", "nan_loss", "good"], average_decay=0.5)
    assert module.average is not None and module.average.num_updates == 2
    assert fit(["good"])[0].average is None
