"""A target as its library computes it: one whole pass per sequence, without any cache.

Slow and obvious, so that what an engine or a drafter computes can be compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from aurora_core.records import TargetSpec

NUM_REMEMBERED = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """What the target computed at every position of one sequence. Leading dimension T, float32."""

    entering: Tensor
    """[T, L + 1, D]. Hidden states entering each layer, then the last layer's output before the
    final norm."""
    last_hidden_state: Tensor
    """[T, D]. Input of the output head."""
    logits: Tensor
    """[T, V]."""

    def features(self, aux_layers: Sequence[int]) -> dict[str, Tensor]:
        """Return every feature by `FeatureName`, each [T, ...]."""
        return {
            "aux_hidden_states": self.entering[:, list(aux_layers)].flatten(1),
            "last_hidden_state": self.last_hidden_state,
            "target_logsumexp": self.logits.logsumexp(-1),
        }


class ReferenceTarget:
    """Runs a target directory with transformers, in float32 on CPU."""

    def __init__(self, target: TargetSpec) -> None:
        self.spec = target
        auto: Any = AutoModelForCausalLM
        self._model: Any = auto.from_pretrained(
            target.path, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        ).eval()
        self._known: dict[tuple[int, ...], TargetRows] = {}
        self._before_norm: list[Tensor] = []
        self._model.model.norm.register_forward_pre_hook(
            lambda _, given: self._before_norm.append(given[0])
        )

    def rows(self, token_ids: Sequence[int]) -> TargetRows:
        """Return what the target computes on a sequence, from its first token to its last.

        Sequences that were asked for lately are remembered: leave the tensors as they are.
        """
        key = tuple(token_ids)
        if key not in self._known:
            if len(self._known) >= NUM_REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[key] = self._compute(key)
        return self._known[key]

    @torch.no_grad()
    def _compute(self, token_ids: tuple[int, ...]) -> TargetRows:
        self._before_norm.clear()
        output = self._model.model(torch.tensor([list(token_ids)]), output_hidden_states=True)
        # The library's last entry has passed the final norm already.
        states = (*output.hidden_states[: self.spec.num_layers], self._before_norm[0])
        last = output.last_hidden_state[0]
        return TargetRows(
            entering=torch.stack([state[0] for state in states], 1),
            last_hidden_state=last,
            logits=self._model.lm_head(last),
        )
