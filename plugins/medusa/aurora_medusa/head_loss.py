"""Output heads and forward KL in one differentiable step that keeps no logits.

Shape legend:
    R  supervised rows of one head    H  hidden size    D  draft vocabulary    K  heads

Logits of all heads and rows at once, [K, R, D], would be the largest tensor of training by far.
Target rows are taken in chunks: their probabilities are computed once for all heads, and each
head's logits become gradients before the next head's are made.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from aurora_core.learner.teacher import Teacher

CHUNK_ROWS = 256
"""Rows in a chunk, about, over all heads: enough for matrix products at full speed, few enough for
the logits to stay in a processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What one head is taught."""

    teacher_row: Tensor
    """int64 [R]. Target row that supervises each of the head's rows; increasing."""
    weight: float
    """Of the head in the loss."""


def forward_kl(
    logits: Tensor, target_probs: Tensor, target_entropy: Tensor
) -> tuple[Tensor, Tensor]:
    """Return KL from target to draft, float32 [R], and its gradients by the logits [R, D].

    The KL is the sum over D of target_probs * log(target_probs / draft_probs).

    Args:
        logits: float32 [R, D].
        target_probs: float32 [R, D]. A row sums to less than 1 where the target expects tokens
            outside the draft vocabulary; what cannot be drafted is not shared out among the rest.
        target_entropy: float32 [R]. Minus the sum over D of target_probs * log(target_probs).
    """
    log_probs = logits.log_softmax(-1)
    value = -torch.linalg.vecdot(target_probs, log_probs) - target_entropy
    gradient = log_probs.exp_().mul_(target_probs.sum(-1, keepdim=True)).sub_(target_probs)
    return value, gradient


def supervise(
    hidden: Sequence[Tensor],
    output_heads: Sequence[Tensor],
    lessons: Sequence[Lesson],
    teacher: Teacher,
) -> tuple[Tensor, Tensor]:
    """Return (sum of weight * KL, bool: rows where the committed token was the head's best).

    Args:
        hidden: for each head what its output matrix reads, [R, H]; R differs between heads.
        output_heads: for each head its output matrix, [D, H]; may be one and the same.
        lessons: for each head what supervises its rows.
        teacher: target rows.

    Returns:
        float32 [], and bool of all heads' rows, one head after the other.
    """
    apply: Any = _HeadLoss.apply
    total, hits = apply(lessons, teacher, *hidden, *output_heads)
    return total, hits


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, lessons: Sequence[Lesson], teacher: Teacher, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        num_heads = len(lessons)
        hidden, matrices = tensors[:num_heads], tensors[num_heads:]
        device, dtype = hidden[0].device, hidden[0].dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        wanted = ctx.needs_input_grad[2:]
        gradients = [
            torch.zeros_like(tensor, dtype=torch.float32) if wants else None
            for tensor, wants in zip(tensors, wanted, strict=True)
        ]
        # A shared matrix is converted once.
        converted = {matrix.data_ptr(): matrix.to(dtype) for matrix in matrices}
        total = torch.zeros((), dtype=torch.float32, device=device)
        hits = [torch.zeros(len(rows), dtype=torch.bool, device=device) for rows in hidden]
        with torch.autocast(device.type, enabled=False):
            for taught, pieces in _chunks(lessons, teacher.num_rows):
                target_probs, entropy = teacher.probabilities(taught)
                next_index = teacher.next_index[taught]
                for head, rows in pieces:
                    lesson, matrix = lessons[head], converted[matrices[head].data_ptr()]
                    pupil = lesson.teacher_row[rows] - taught.start
                    read = hidden[head][rows].to(dtype)
                    logits = (read @ matrix.T).float()
                    hits[head][rows] = logits.argmax(-1) == next_index[pupil]
                    value, gradient = forward_kl(logits, target_probs[pupil], entropy[pupil])
                    total += lesson.weight * value.sum()
                    gradient = gradient.mul_(lesson.weight).to(dtype)
                    of_hidden, of_matrix = gradients[head], gradients[num_heads + head]
                    if of_hidden is not None:
                        of_hidden[rows] = (gradient @ matrix).float()
                    if of_matrix is not None:
                        of_matrix += (gradient.T @ read).float()
        ctx.save_for_backward(
            *(
                None if gradient is None else gradient.to(tensor.dtype)
                for tensor, gradient in zip(tensors, gradients, strict=True)
            )
        )
        all_hits = torch.cat(hits)
        ctx.mark_non_differentiable(all_hits)
        return total, all_hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (
            None if gradient is None else gradient * total_gradient
            for gradient in ctx.saved_tensors
        )
        return (None, None, *scaled)


def _chunks(
    lessons: Sequence[Lesson], num_teacher_rows: int
) -> list[tuple[slice, list[tuple[int, slice]]]]:
    """Return slices of the target rows, each with the rows of each head that they supervise."""
    step = max(1, CHUNK_ROWS // len(lessons))
    edges = [*range(0, num_teacher_rows, step), num_teacher_rows]
    cuts = [
        torch.searchsorted(
            lesson.teacher_row, torch.tensor(edges, device=lesson.teacher_row.device)
        ).tolist()
        for lesson in lessons
    ]
    chunks = []
    for index, (start, stop) in enumerate(itertools.pairwise(edges)):
        pieces = [
            (head, slice(cut[index], cut[index + 1]))
            for head, cut in enumerate(cuts)
            if cut[index] < cut[index + 1]
        ]
        if pieces:
            chunks.append((slice(start, stop), pieces))
    return chunks
