"""What the target teaches: its probabilities of the draft vocabulary, as each request uses them.

Shape legend:
    Y  target rows    H  hidden size    V  target vocabulary    D  draft vocabulary

Probabilities are shares of the whole vocabulary and are not renormalised on the draft vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from aurora_core.learner.teacher import sampling_probabilities
from aurora_eagle import vocabulary
from aurora_eagle.collate import Batch
from aurora_eagle.model import Eagle3Network

ROWS_AT_ONCE = 64
"""Rows whose distributions over the whole target vocabulary are held at a time."""


class Teacher:
    """Target rows of one batch; probabilities are computed for a few rows at a time."""

    def __init__(
        self,
        network: Eagle3Network,
        batch: Batch,
        *,
        greedy_teacher: Literal["soft", "argmax"],
        tokens_only: bool = False,
    ) -> None:
        """
        Args:
            network: for the target's head and the draft vocabulary.
            batch: whose rows teach.
            greedy_teacher: what greedy requests teach; see `Eagle3Options`.
            tokens_only: every row teaches its committed token alone, and which drafts were refused.
        """
        self._batch = batch
        self._head_VH = network.target_head
        self._target_ids_D = network.target_ids
        self._tokens_only = tokens_only
        self._indices_V = vocabulary.draft_indices(network.d2t, network.shape.vocab_size)
        temperature_Y = batch.temperature[batch.teacher_trace]
        top_p_Y, top_k_Y = batch.top_p[batch.teacher_trace], batch.top_k[batch.teacher_trace]
        greedy_Y = temperature_Y == 0
        self._one_hot_Y = greedy_Y if greedy_teacher == "argmax" else torch.zeros_like(greedy_Y)
        if tokens_only:
            self._one_hot_Y = torch.ones_like(greedy_Y)
        else:
            self._head_DH = self._head_VH[self._target_ids_D].float()
        self._best_Y = self._best_tokens()
        self.next_index = self.draft_index(self._best_Y)
        """int64 [Y]. Draft index of the token that is right after each row: the committed one, or
        where none was, the target's best if the row teaches that alone; -1 if there is none."""
        # The stored logsumexp normalises at temperature 1 only; for anything else the sum over the
        # whole vocabulary has to be taken again.
        self._reshaped_Y = ~greedy_Y & ((temperature_Y != 1) | (top_p_Y < 1) | (top_k_Y > 0))
        self._any_special = bool((self._one_hot_Y | self._reshaped_Y).any())

    def draft_index(self, tokens: Tensor) -> Tensor:
        """Return the draft indices of target ids, -1 for -1 and for what cannot be drafted."""
        return self._indices_V[tokens.clamp(min=0)].masked_fill(tokens < 0, -1)

    def _best_tokens(self) -> Tensor:
        """Return the committed tokens, completed where a rejected row must name its best."""
        tokens = self._batch.teacher_next_token
        missing = (self._one_hot_Y & (tokens < 0)).nonzero().flatten()
        if len(missing):
            tokens = tokens.clone()
            for rows in missing.split(ROWS_AT_ONCE):
                hidden_RH = self._batch.last_hidden_state[rows].float()
                tokens[rows] = (hidden_RH @ self._head_VH.float().T).argmax(-1)
        return tokens

    @property
    def num_rows(self) -> int:
        """Y."""
        return len(self._batch.target_logsumexp)

    def probabilities(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return (probabilities float32 [y, D], their entropies float32 [y]) of some rows.

        The entropy is minus the sum over the draft vocabulary of probability * log(probability).
        """
        if self._tokens_only:
            num_rows = len(self._batch.target_logsumexp[rows])
            probs_YD = torch.zeros(num_rows, len(self._target_ids_D), device=self._indices_V.device)
            return _one_hot(probs_YD, self.next_index[rows]), probs_YD.new_zeros(num_rows)
        hidden_YH = self._batch.last_hidden_state[rows].float()
        log_probs_YD = hidden_YH @ self._head_DH.T
        log_probs_YD -= self._batch.target_logsumexp[rows, None]
        probs_YD = log_probs_YD.exp()
        entropy_Y = -torch.linalg.vecdot(probs_YD, log_probs_YD)
        if self._any_special:
            self._replace(rows, probs_YD, entropy_Y)
        return probs_YD, entropy_Y

    def _replace(self, rows: slice, probs_YD: Tensor, entropy_Y: Tensor) -> None:
        """Overwrite the rows of requests that were not sampled at temperature 1."""
        one_hot = self._one_hot_Y[rows].nonzero().flatten()
        probs_YD[one_hot] = _one_hot(
            torch.zeros_like(probs_YD[one_hot]), self.next_index[rows][one_hot]
        )
        entropy_Y[one_hot] = 0.0
        reshaped = self._reshaped_Y[rows].nonzero().flatten()
        if len(reshaped):
            full_YV = self._sampled_from(reshaped + rows.start)
            probs_YD[reshaped] = full_YV[:, self._target_ids_D]
            entropy_Y[reshaped] = torch.special.entr(probs_YD[reshaped]).sum(-1)

    def refused(self, rows: slice) -> Tensor | None:
        """Return float32 [y, D], 1 where a draft was refused after the row; None without any."""
        batch = self._batch
        if not len(batch.refused_row):
            return None
        index = self.draft_index(batch.refused_token)
        num_rows = len(batch.target_logsumexp[rows])
        local = batch.refused_row - rows.start
        mine = ((local >= 0) & (local < num_rows) & (index >= 0)).nonzero().flatten()
        refused = torch.zeros(num_rows, len(self._target_ids_D), device=index.device)
        refused[local[mine], index[mine]] = 1.0
        return refused

    def log_probability(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Return float32 [R]: log-probabilities that target rows give to tokens.

        Args:
            rows: int64 [R], among the Y; -1 gives every token probability 0.
            tokens: int64 [R]. Target vocabulary ids, whether or not they can be drafted.
        """
        found = torch.full((len(rows),), float("-inf"), device=rows.device)
        for part in (rows >= 0).nonzero().flatten().split(ROWS_AT_ONCE):
            found[part] = self._log_probability(rows[part], tokens[part])
        return found

    def _log_probability(self, rows: Tensor, tokens: Tensor) -> Tensor:
        batch = self._batch
        hidden_RH = batch.last_hidden_state[rows].float()
        plain = torch.linalg.vecdot(hidden_RH, self._head_VH[tokens].float())
        found = plain - batch.target_logsumexp[rows]
        reshaped = self._reshaped_Y[rows].nonzero().flatten()
        if len(reshaped):
            full_RV = self._sampled_from(rows[reshaped])
            found[reshaped] = full_RV.gather(1, tokens[reshaped, None])[:, 0].log()
        one_hot = self._one_hot_Y[rows]
        is_best = torch.where(tokens == self._best_Y[rows], 0.0, float("-inf"))
        return torch.where(one_hot, is_best, found)

    def _sampled_from(self, rows: Tensor) -> Tensor:
        """Return the distributions [R, V] of rows of requests that are sampled."""
        trace = self._batch.teacher_trace[rows]
        return sampling_probabilities(
            self._batch.last_hidden_state[rows].float() @ self._head_VH.float().T,
            temperature=self._batch.temperature[trace],
            top_p=self._batch.top_p[trace],
            top_k=self._batch.top_k[trace],
        )


def _one_hot(zeros: Tensor, index: Tensor) -> Tensor:
    """Set the named column of each row to 1; -1 leaves a row as it is."""
    drafted = (index >= 0).nonzero().flatten()
    zeros[drafted, index[drafted]] = 1.0
    return zeros
