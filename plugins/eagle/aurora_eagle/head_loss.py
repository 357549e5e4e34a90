"""Output head and objective in one differentiable step that keeps no logits.

Shape legend:
    R  supervised rows, over all anchors and steps    H  hidden size    D  draft vocabulary

Logits of all rows at once would be the largest tensor of training by far. Rows are therefore taken
in chunks with one target row's pupils together: a target row's probabilities are computed once, and
a chunk's logits become gradients of the head and of the hidden states before the next chunk begins.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from aurora_eagle.losses import Objective, unlikelihood
from aurora_eagle.teacher import Teacher

CHUNK_ROWS = 256
"""Supervised rows in a chunk, about: enough for matrix products at full speed, few enough for the
chunk's logits to stay in a processor's cache."""


def supervise(
    hidden_RH: Tensor,
    head_DH: Tensor,
    *,
    teacher: Teacher,
    teacher_row: Tensor,
    weight: Tensor,
    objective: Objective,
    refusal_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return (sum over rows of weight * loss, bool [R] where the committed token was the best).

    Args:
        hidden_RH: normalised outputs.
        head_DH: output head of the drafter.
        teacher: target rows.
        teacher_row: int64 [R]. The target row that supervises each row; non-decreasing.
        weight: float32 [R].
        objective: gives losses and gradients of logits.
        refusal_weight: what the unlikelihood of the tokens that a target row refused counts.
    """
    apply: Any = _HeadLoss.apply
    total, hits = apply(hidden_RH, head_DH, teacher, teacher_row, weight, objective, refusal_weight)
    return total, hits


@torch.no_grad()
def read_head(hidden_RH: Tensor, head_DH: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the drafter thinks of one token in each row, without gradients.

    Args:
        hidden_RH: normalised outputs.
        head_DH: output head of the drafter.
        index: int64 [R]. Draft indices; -1 for a token that cannot be drafted.

    Returns:
        (float32 [R] log-probabilities, bool [R] whether it is the best token)
    """
    log_probs = torch.full((len(index),), float("-inf"), device=hidden_RH.device)
    is_best = torch.zeros(len(index), dtype=torch.bool, device=hidden_RH.device)
    for first in range(0, len(index), CHUNK_ROWS):
        rows = slice(first, first + CHUNK_ROWS)
        logits = (hidden_RH[rows] @ head_DH.T).float()
        chosen = logits.gather(1, index[rows].clamp(min=0)[:, None])[:, 0]
        known = index[rows] >= 0
        log_probs[rows] = (chosen - logits.logsumexp(-1)).masked_fill(~known, float("-inf"))
        is_best[rows] = (chosen == logits.amax(-1)) & known
    return log_probs, is_best


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_RH: Tensor,
        head_DH: Tensor,
        teacher: Teacher,
        teacher_row: Tensor,
        weight: Tensor,
        objective: Objective,
        refusal_weight: float,
    ) -> tuple[Tensor, Tensor]:
        device = hidden_RH.device.type
        dtype = hidden_RH.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        wants_hidden, wants_head = ctx.needs_input_grad[:2]
        hidden_gradient = torch.zeros_like(hidden_RH) if wants_hidden else None
        head_gradient = torch.zeros_like(head_DH, dtype=torch.float32) if wants_head else None
        total = torch.zeros((), dtype=torch.float32, device=hidden_RH.device)
        hits = torch.zeros(len(hidden_RH), dtype=torch.bool, device=hidden_RH.device)
        with torch.autocast(device, enabled=False):
            head = head_DH.to(dtype)
            for rows, teacher_rows in _chunks(teacher_row, teacher.num_rows):
                hidden = hidden_RH[rows].to(dtype)
                logits = (hidden @ head.T).float()
                target_probs, entropy = teacher.probabilities(teacher_rows)
                pupil = teacher_row[rows] - teacher_rows.start
                loss = objective(logits, target_probs[pupil], entropy[pupil])
                total += torch.dot(loss.value, weight[rows])
                next_index = teacher.next_index[teacher_rows][pupil]
                chosen = logits.gather(1, next_index.clamp(min=0)[:, None])[:, 0]
                hits[rows] = (chosen == loss.best) & (next_index >= 0)
                refused = teacher.refused(teacher_rows) if refusal_weight else None
                if refused is not None:
                    extra = unlikelihood(logits, refused[pupil])
                    total += refusal_weight * torch.dot(extra.value, weight[rows])
                    loss.gradient.add_(extra.gradient, alpha=refusal_weight)
                gradient = loss.gradient.mul_(weight[rows, None])
                if hidden_gradient is not None:
                    hidden_gradient[rows] = (gradient.to(dtype) @ head).to(hidden_RH.dtype)
                if head_gradient is not None:
                    if dtype is torch.float32:
                        head_gradient.addmm_(gradient.T, hidden)
                    else:
                        head_gradient += gradient.to(dtype).T @ hidden
        ctx.save_for_backward(
            hidden_gradient, None if head_gradient is None else head_gradient.to(head_DH.dtype)
        )
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, head_gradient = ctx.saved_tensors
        return (
            None if hidden_gradient is None else hidden_gradient * total_gradient,
            None if head_gradient is None else head_gradient * total_gradient,
            *(None,) * 5,
        )


def _chunks(teacher_row: Tensor, num_teacher_rows: int) -> list[tuple[slice, slice]]:
    """Cut rows and their target rows into chunks of about `CHUNK_ROWS` rows."""
    per_teacher = max(1, -(-len(teacher_row) // max(1, num_teacher_rows)))
    step = max(1, CHUNK_ROWS // per_teacher)
    edges = [*range(0, num_teacher_rows, step), num_teacher_rows]
    cuts = torch.searchsorted(
        teacher_row, torch.tensor(edges, dtype=torch.int64, device=teacher_row.device)
    ).tolist()
    return [
        (slice(first, last), slice(start, stop))
        for first, last, start, stop in zip(cuts, cuts[1:], edges, edges[1:], strict=False)
        if last > first
    ]
