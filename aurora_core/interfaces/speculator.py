"""A drafter algorithm, as the learner trains it and an engine loads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from aurora_core.interfaces.component import Component, Options
from aurora_core.interfaces.drafter import Drafter
from aurora_core.records import Needs, TargetSpec, Trace

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from aurora_core.target.weights import TargetWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """One batch's loss as sums, so that several batches or ranks add up to the true mean."""

    loss_sum: Tensor
    """float32 []. Differentiable; divide by `weight_sum` for the mean."""
    weight_sum: Tensor
    """float32 []. Detached; 0 when the batch supervises nothing."""
    num_tokens: int
    """Supervised response positions."""
    metrics: Mapping[str, Tensor]
    """Name -> float32 [] means for the log."""


class Speculator(Component, ABC):
    """A drafter algorithm: what to record, how to learn from it, how to draft.

    The engine uses `needs`, `load` and `drafter`; the learner uses the rest. One instance serves
    one target.
    """

    topologies: frozenset[str] = frozenset({"chain"})
    """Shapes of the proposals of this configuration, `chain` or `tree`; both where the same
    weights can be drafted with in either way and an engine may choose."""
    formats: ClassVar[frozenset[str]] = frozenset({"module"})
    """Checkpoint formats that `save` writes: `module` plus names of engine layouts."""
    export_formats: ClassVar[frozenset[str]] = frozenset()
    """Further layouts that `export` makes of what `save` wrote."""
    trainable: ClassVar[bool] = True
    """False for algorithms that learn by `Drafter.observe` alone: nothing is published, and an
    engine drafts from its start with what `build_module(weights, ())` gives."""

    def __init__(self, options: Options, target: TargetSpec) -> None:
        super().__init__(options)
        self.target = target

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """Return what must be recorded. Read once, before anything is loaded."""

    @property
    def starts_trained(self) -> bool:
        """Whether `build_module(weights, ())` gives a drafter that was trained already.

        A published one for example. A new run serves it from its first request then.
        """
        return False

    @abstractmethod
    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        """Return a fresh drafter for a new lineage, float32, on CPU.

        Args:
            weights: lazily loaded tensors of the target, to share or to initialise from.
            traces: the first traces, from which to choose a draft vocabulary or statistics;
                whatever is chosen is stored in the module and never changes in the lineage.
        """

    @abstractmethod
    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        """Pad and stack traces into one batch on CPU.

        Raises:
            TraceError: a trace lacks a needed feature or holds non-finite values; the learner
                skips and counts it.
        """

    @abstractmethod
    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        """Return the training loss of one batch. Must not change `batch`."""

    @abstractmethod
    def acceptance(
        self, module: nn.Module, batch: Mapping[str, Tensor], num_speculative_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Replay greedy drafting from every committed response position, without gradients.

        Returns:
            (accepted, anchors): int64 [B, K], the anchors of each trace whose first k drafts
            were all right, and int64 [B], the anchors scored.
        """

    @abstractmethod
    def save(self, module: nn.Module, path: Path) -> None:
        """Write config.json and model.safetensors, self-contained and with every flag explicit."""

    @abstractmethod
    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        """Read what `save` wrote.

        Raises:
            CheckpointError: a missing, extra, misshaped or non-finite tensor, or a checkpoint of
                another target or vocabulary; nothing is loaded then.
        """

    def export(
        self, checkpoint: Path, folder: Path, *, layout: str, num_speculative_tokens: int
    ) -> None:
        """Write a checkpoint in another layout, without loading the target.

        Args:
            checkpoint: what `save` wrote; whole, its checksum was compared.
            folder: exists and is empty.
            layout: one of `export_formats`.
            num_speculative_tokens: for layouts that say how deep to draft.

        Raises:
            CheckpointError: the layout cannot hold this drafter.
        """
        raise NotImplementedError(f"{type(self).__name__} has no layout {layout!r}")

    @classmethod
    def serving_command(
        cls, folder: Path, *, layout: str, target: str, num_speculative_tokens: int
    ) -> Sequence[str]:
        """Return how an engine without Aurora serves what was exported; `aurora export` prints it.

        Args:
            folder: that was written.
            layout: one of `formats` or `export_formats`.
            target: directory or hub id.
            num_speculative_tokens: how deep to draft.

        Returns:
            Program and arguments; none for a layout that only Aurora loads.
        """
        return ()

    @abstractmethod
    def drafter(self, module: nn.Module, *, dtype: torch.dtype, device: torch.device) -> Drafter:
        """Return a proposer that an engine steps, holding its own copy of the weights."""
