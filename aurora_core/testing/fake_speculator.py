"""A speculator that only declares, for runs on `FakeBackend` with `fake_learner`. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from aurora_core import hookimpl
from aurora_core.interfaces import Drafter, LossOutput, Speculator
from aurora_core.records import Needs, Registration, Trace

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from aurora_core.target.weights import TargetWeights


class FakeSpeculator(Speculator):
    """Needs what EAGLE-3 needs; its weights exist in the imagination of the fake learner."""

    topologies = frozenset({"chain"})
    formats = frozenset({"module"})

    @property
    def needs(self) -> Needs:
        return Needs(features=frozenset({"aux_hidden_states"}), aux_layers=(1,))

    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        self._refuse()

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        self._refuse()

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        self._refuse()

    def acceptance(
        self, module: nn.Module, batch: Mapping[str, Tensor], num_speculative_tokens: int
    ) -> tuple[Tensor, Tensor]:
        self._refuse()

    def save(self, module: nn.Module, path: Path) -> None:
        self._refuse()

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        self._refuse()

    def drafter(self, module: nn.Module, *, dtype: torch.dtype, device: torch.device) -> Drafter:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AssertionError("the fake speculator has no weights")


class FakePlugin:
    """Registers the fakes under the name `fake`: `plugins.register(FakePlugin(), "fake")`."""

    @hookimpl
    def aurora_register_speculators(self) -> Iterable[Registration]:
        """Register the declaring speculator."""
        yield Registration("fake", "aurora_core.testing.fake_speculator:FakeSpeculator")

    @hookimpl
    def aurora_register_backends(self) -> Iterable[Registration]:
        """Register the engine without a model."""
        yield Registration("fake", "aurora_core.testing.fake_backend:FakeBackend")
