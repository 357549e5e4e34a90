"""What the target teaches: its probabilities of a draft vocabulary, as each request uses them.

Shape legend:
    Y  target rows    H  hidden size    V  target vocabulary    D  draft vocabulary

A request that is sampled at some temperature and `top_p` accepts drafts by that very distribution,
so that is what its rows teach. Probabilities are shares of the whole vocabulary and are not
renormalised on the draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """Rows of the target whose next token was committed, and how their requests sampled."""

    last_hidden_state: Tensor
    """[Y, H]. Input of the target's head."""
    logsumexp: Tensor
    """float32 [Y]. Of the logits at temperature 1 over the whole vocabulary."""
    next_token: Tensor
    """int64 [Y]. The token committed after the row."""
    temperature: Tensor
    """float32 [Y]. 0 is greedy."""
    top_p: Tensor
    """float32 [Y]. 1 keeps everything."""
    top_k: Tensor
    """int64 [Y]. 0 keeps everything."""


class Teacher:
    """Gives the probabilities of a few target rows at a time, without gradients."""

    def __init__(
        self,
        rows: TargetRows,
        head_VH: Tensor,
        target_ids_D: Tensor,
        *,
        greedy_teacher: Literal["soft", "argmax"],
    ) -> None:
        """Prepare the head's rows of the draft vocabulary.

        Args:
            rows: target rows, on the head's device.
            head_VH: the target's output head.
            target_ids_D: int64. Ids of the draft vocabulary, increasing.
            greedy_teacher: what greedy requests teach, the distribution at temperature 1 or the
                committed token alone.
        """
        self._rows, self._head_VH, self._target_ids_D = rows, head_VH, target_ids_D
        self._head_DH = head_VH[target_ids_D].float()
        index_V = torch.full((len(head_VH),), -1, dtype=torch.int64, device=target_ids_D.device)
        index_V[target_ids_D] = torch.arange(len(target_ids_D), device=target_ids_D.device)
        self.next_index = index_V[rows.next_token]
        """int64 [Y]. Draft index of the token committed after each row; -1 if there is none."""
        greedy_Y = rows.temperature == 0
        self._one_hot_Y = greedy_Y if greedy_teacher == "argmax" else torch.zeros_like(greedy_Y)
        # The stored logsumexp normalises at temperature 1 only; for anything else the sum over the
        # whole vocabulary has to be taken again.
        reshaped_Y = (rows.temperature != 1) | (rows.top_p < 1) | (rows.top_k > 0)
        self._reshaped_Y = ~greedy_Y & reshaped_Y

    @property
    def num_rows(self) -> int:
        """Y."""
        return len(self._rows.logsumexp)

    @torch.no_grad()
    def probabilities(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return (probabilities float32 [y, D], their entropies float32 [y]) of some rows.

        The entropy is minus the sum over the draft vocabulary of probability * log(probability).
        """
        hidden_YH = self._rows.last_hidden_state[rows].float()
        log_probs_YD = hidden_YH @ self._head_DH.T
        log_probs_YD -= self._rows.logsumexp[rows, None]
        probs_YD = log_probs_YD.exp()
        entropy_Y = -torch.linalg.vecdot(probs_YD, log_probs_YD)
        one_hot = self._one_hot_Y[rows].nonzero().flatten()
        if len(one_hot):
            index = self.next_index[rows][one_hot]
            drafted = index >= 0
            probs_YD[one_hot] = 0.0
            probs_YD[one_hot[drafted], index[drafted]] = 1.0
            entropy_Y[one_hot] = 0.0
        reshaped = self._reshaped_Y[rows].nonzero().flatten()
        if len(reshaped):
            full_YV = sampling_probabilities(
                hidden_YH[reshaped] @ self._head_VH.float().T,
                temperature=self._rows.temperature[rows][reshaped],
                top_p=self._rows.top_p[rows][reshaped],
                top_k=self._rows.top_k[rows][reshaped],
            )
            probs_YD[reshaped] = full_YV[:, self._target_ids_D]
            entropy_Y[reshaped] = torch.special.entr(probs_YD[reshaped]).sum(-1)
        return probs_YD, entropy_Y


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
