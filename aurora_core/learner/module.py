"""One training step: loss, gradient, and the cases in which nothing may be learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import lightning
import torch
from torch import Tensor, nn

from aurora_core.learner.averaging import WeightAverage
from aurora_core.learner.health import BadShare
from aurora_core.learner.muon import MuonWithAdamW, split_parameters
from aurora_core.learner.random_state import random_state, restore_random_state

if TYPE_CHECKING:
    from aurora_core.config import LearnerSection
    from aurora_core.interfaces import LossOutput, Speculator


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What came of one batch, over all ranks."""

    skipped: Literal["empty", "non_finite_loss", "non_finite_gradient"] | None
    """Why no optimizer step was made; None if one was."""
    num_tokens: int
    """Supervised response positions."""
    loss: float
    """Mean over supervised positions; NaN for a skipped batch."""
    gradient_norm: float
    """Before clipping; NaN for a skipped batch."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """The speculator's own, of this rank."""


class LearnerModule(lightning.LightningModule):
    """Adapts a speculator's drafter to the Lightning Trainer.

    The loss of a step is the sum over all ranks of `loss_sum` divided by the sum over all ranks of
    `weight_sum`: two ranks with 3 and 97 supervised tokens step exactly as one with all 100.

    Optimization is manual, because a batch whose gradient is not finite must leave the weights,
    the optimizer and the step count as they were; Lightning's automatic loop counts such a step.

    Args:
        speculator: computes the loss.
        drafter: what `speculator.build_module` or `load` returned.
        options: learning rates, warm-up, clipping, averaging.
        lineage: what the checkpoint must belong to; stored in it.
    """

    def __init__(
        self,
        speculator: Speculator,
        drafter: nn.Module,
        options: LearnerSection,
        *,
        lineage: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.speculator, self.drafter, self.options = speculator, drafter, options
        self.lineage = dict(lineage)
        self.average: WeightAverage | None = None
        if options.average_decay > 0:
            self.average = WeightAverage(drafter, options.average_decay)
        self.num_tokens_trained = 0
        self.num_skipped_batches = 0
        self.newest_version: int | None = None
        """Latest version of the lineage: the parent of the next one."""
        self.has_published = False
        """Whether the lineage has a version beyond the one it started from."""
        self.health = BadShare(options.max_bad_share)
        """Recent batches and traces; the stream pauses when too many are bad."""
        self.outcome: StepOutcome | None = None
        """Of the latest batch."""
        self._random_state: dict[str, Any] | None = None

    def training_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
        """Learn from one batch and put what came of it into `outcome`."""
        output = self.speculator.loss(self.drafter, batch)
        self.outcome = self._learn(output)
        self.health.record(is_bad=self.outcome.skipped is not None)
        if self.outcome.skipped is not None:
            self.num_skipped_batches += 1
            return
        self.num_tokens_trained += self.outcome.num_tokens
        if self.average is not None:
            self.average.update(self.drafter)

    def _learn(self, output: LossOutput) -> StepOutcome:
        loss_sum, weight_sum, num_tokens, num_broken = self._over_ranks(output)
        nan = float("nan")
        if num_broken:
            return StepOutcome(skipped="non_finite_loss", num_tokens=0, loss=nan, gradient_norm=nan)
        if weight_sum == 0:
            return StepOutcome(skipped="empty", num_tokens=0, loss=nan, gradient_norm=nan)
        optimizer = self.optimizers()
        assert isinstance(optimizer, lightning.pytorch.core.optimizer.LightningOptimizer)
        # Data parallelism averages gradients over the ranks where the sum is wanted.
        self.manual_backward(output.loss_sum * (self.trainer.world_size / weight_sum))
        limit = self.options.gradient_clip or float("inf")
        gradient_norm = float(nn.utils.clip_grad_norm_(self.drafter.parameters(), limit))
        if not torch.isfinite(torch.tensor(gradient_norm)):
            optimizer.zero_grad()
            return StepOutcome(
                skipped="non_finite_gradient", num_tokens=0, loss=nan, gradient_norm=nan
            )
        optimizer.step()
        optimizer.zero_grad()
        scheduler = self.lr_schedulers()
        assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
        scheduler.step()
        return StepOutcome(
            skipped=None,
            num_tokens=int(num_tokens),
            loss=loss_sum / weight_sum,
            gradient_norm=gradient_norm,
            metrics={name: value.detach() for name, value in output.metrics.items()},
        )

    def _over_ranks(self, output: LossOutput) -> tuple[float, float, float, float]:
        """Return sums over ranks: loss, weight, tokens, and ranks whose loss is not finite."""
        sums = torch.stack([output.loss_sum.detach(), output.weight_sum.detach()]).float()
        is_broken = not bool(torch.isfinite(sums).all())
        if is_broken:
            sums = torch.zeros_like(sums)
        sums = torch.cat([sums, sums.new_tensor([output.num_tokens, is_broken])])
        if self.trainer.world_size > 1:
            sums = self.trainer.strategy.reduce(sums, reduce_op="sum")
        loss, weight, tokens, broken = sums.tolist()
        return loss, weight, tokens, broken

    def configure_optimizers(self) -> tuple[list[Any], list[Any]]:
        """Return Muon for matrices with AdamW for the rest, and a linear warm-up."""
        matrices, others = split_parameters(self.drafter)
        optimizer = MuonWithAdamW(
            matrices,
            others,
            matrix_learning_rate=self.options.matrix_learning_rate,
            learning_rate=self.options.learning_rate,
        )
        return [optimizer], [
            torch.optim.lr_scheduler.LambdaLR(optimizer, _warm_up(self.options.warmup_steps))
        ]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what Lightning does not know: counters, random states, the lineage."""
        checkpoint["aurora"] = {
            "lineage": self.lineage,
            "num_tokens_trained": self.num_tokens_trained,
            "num_skipped_batches": self.num_skipped_batches,
            "newest_version": self.newest_version,
            "has_published": self.has_published,
            "average": None if self.average is None else self.average.state_dict(),
            "random": random_state(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take back what `on_save_checkpoint` added."""
        state = checkpoint["aurora"]
        self.num_tokens_trained = state["num_tokens_trained"]
        self.num_skipped_batches = state["num_skipped_batches"]
        self.newest_version = state["newest_version"]
        self.has_published = state["has_published"]
        if self.average is not None and state["average"] is not None:
            self.average.load_state_dict(state["average"])
        self._random_state = state["random"]

    def on_train_start(self) -> None:
        """Restore random states last, after everything that draws from them while starting."""
        if self._random_state is not None:
            restore_random_state(self._random_state)
            self._random_state = None


def _warm_up(num_steps: int) -> Callable[[int], float]:
    return lambda step: min(1.0, (step + 1) / (num_steps + 1))
