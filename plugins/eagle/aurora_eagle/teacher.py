"""What the target teaches: its probabilities of the draft vocabulary, as each request uses them.

Shape legend:
    Y  target rows    H  hidden size    V  target vocabulary    D  draft vocabulary

Probabilities are shares of the whole vocabulary and are not renormalised on the draft vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from aurora_eagle import vocabulary
from aurora_eagle.collate import Batch
from aurora_eagle.model import Eagle3Network


class Teacher:
    """Target rows of one batch; probabilities are computed for a few rows at a time."""

    def __init__(
        self, network: Eagle3Network, batch: Batch, *, greedy_teacher: Literal["soft", "argmax"]
    ) -> None:
        self._batch = batch
        self._head_VH = network.target_head
        self._target_ids_D = network.target_ids
        self._head_DH = self._head_VH[self._target_ids_D].float()
        self.next_index = vocabulary.draft_indices(network.d2t, network.shape.vocab_size)[
            batch.teacher_next_token
        ]
        """int64 [Y]. Draft index of the token committed after each row; -1 if there is none."""
        temperature_Y = batch.temperature[batch.teacher_trace]
        top_p_Y, top_k_Y = batch.top_p[batch.teacher_trace], batch.top_k[batch.teacher_trace]
        greedy_Y = temperature_Y == 0
        self._one_hot_Y = greedy_Y if greedy_teacher == "argmax" else torch.zeros_like(greedy_Y)
        # The stored logsumexp normalises at temperature 1 only; for anything else the sum over the
        # whole vocabulary has to be taken again.
        self._reshaped_Y = ~greedy_Y & ((temperature_Y != 1) | (top_p_Y < 1) | (top_k_Y > 0))
        self._any_special = bool((self._one_hot_Y | self._reshaped_Y).any())

    @property
    def num_rows(self) -> int:
        """Y."""
        return len(self._batch.target_logsumexp)

    def probabilities(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return (probabilities float32 [y, D], their entropies float32 [y]) of some rows.

        The entropy is minus the sum over the draft vocabulary of probability * log(probability).
        """
        hidden_YH = self._batch.last_hidden_state[rows].float()
        log_probs_YD = hidden_YH @ self._head_DH.T
        log_probs_YD -= self._batch.target_logsumexp[rows, None]
        probs_YD = log_probs_YD.exp()
        entropy_Y = -torch.linalg.vecdot(probs_YD, log_probs_YD)
        if self._any_special:
            self._replace(rows, hidden_YH, probs_YD, entropy_Y)
        return probs_YD, entropy_Y

    def _replace(self, rows: slice, hidden_YH: Tensor, probs_YD: Tensor, entropy_Y: Tensor) -> None:
        """Overwrite the rows of requests that were not sampled at temperature 1."""
        one_hot = self._one_hot_Y[rows].nonzero().flatten()
        index = self.next_index[rows][one_hot]
        drafted = index >= 0
        probs_YD[one_hot] = 0.0
        probs_YD[one_hot[drafted], index[drafted]] = 1.0
        entropy_Y[one_hot] = 0.0
        reshaped = self._reshaped_Y[rows].nonzero().flatten()
        if len(reshaped):
            trace = self._batch.teacher_trace[rows][reshaped]
            logits_YV = hidden_YH[reshaped] @ self._head_VH.float().T
            full_YV = sampling_probabilities(
                logits_YV,
                temperature=self._batch.temperature[trace],
                top_p=self._batch.top_p[trace],
                top_k=self._batch.top_k[trace],
            )
            probs_YD[reshaped] = full_YV[:, self._target_ids_D]
            entropy_Y[reshaped] = torch.special.entr(probs_YD[reshaped]).sum(-1)


def sampling_probabilities(
    logits: Tensor, *, temperature: Tensor, top_p: Tensor, top_k: Tensor
) -> Tensor:
    """Return the distributions that requests are sampled from, float32 [R, V].

    Temperature comes first, then the `top_k` likeliest tokens are kept, then the likeliest of those
    until their probabilities, renormalised, reach `top_p`.

    Args:
        logits: float32 [R, V].
        temperature: float32 [R], above 0.
        top_p: float32 [R]; 1 keeps everything.
        top_k: int64 [R]; 0 keeps everything.
    """
    ordered, order = (logits / temperature[:, None]).sort(-1, descending=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    ordered = ordered.masked_fill((top_k[:, None] > 0) & (rank >= top_k[:, None]), float("-inf"))
    probs = ordered.softmax(-1)
    # A token is dropped when those before it reach top_p already; the likeliest always stays.
    before = probs.cumsum(-1) - probs
    probs = probs.masked_fill((before >= top_p[:, None]) & (top_p[:, None] < 1), 0.0)
    probs = probs / probs.sum(-1, keepdim=True)
    return torch.empty_like(probs).scatter_(-1, order, probs)
