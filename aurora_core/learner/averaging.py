"""An exponential moving average of the trained weights, to publish instead of the latest ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Follows the trainable parameters of a module. Frozen parameters and buffers are shared.

    Args:
        decay: share of the average that survives a step. Early on it is less, (1 + n) / (10 + n)
            after n steps, so that the average forgets where training began.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.num_updates = 0
        self._average = {name: tensor.clone() for name, tensor in _trainable(module)}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Take in the weights after an optimizer step."""
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        self.num_updates += 1
        for name, tensor in _trainable(module):
            self._average[name].lerp_(tensor, 1 - decay)

    @contextmanager
    def applied_to(self, module: nn.Module) -> Iterator[None]:
        """Let the module hold the average inside the block, and its own weights after it."""
        own = {name: tensor.clone() for name, tensor in _trainable(module)}
        _copy(self._average, module)
        try:
            yield
        finally:
            _copy(own, module)

    def state_dict(self) -> dict[str, object]:
        """Return the average and its age, for a checkpoint."""
        return {"num_updates": self.num_updates, "average": self._average}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from what `state_dict` returned."""
        num_updates, average = state["num_updates"], state["average"]
        assert isinstance(num_updates, int) and isinstance(average, dict)
        self.num_updates = num_updates
        for name, tensor in self._average.items():
            tensor.copy_(average[name])


def _trainable(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            yield name, parameter.detach()


def _copy(source: dict[str, Tensor], module: nn.Module) -> None:
    for name, tensor in _trainable(module):
        tensor.copy_(source[name])
