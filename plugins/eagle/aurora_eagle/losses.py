"""Objectives on rows of draft logits, each with its gradient.

Pure functions on float32 [R, D]: R rows, D draft vocabulary. `target_probs` are the target's own
probabilities of the draft vocabulary, so a row may sum to less than 1: what the drafter cannot
propose is not shared out among what it can.

Gradients are returned rather than left to autograd, because the draft logits of a batch are its
largest tensors: the caller (`head_loss`) turns each chunk into gradients of head and hidden states
at once and keeps none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoss:
    """Losses of some rows."""

    value: Tensor
    """float32 [R]."""
    gradient: Tensor
    """float32 [R, D]. Of each value with respect to its logits."""
    best: Tensor
    """float32 [R]. The largest logit, for whoever asks whether a token is the drafter's choice."""


Objective = Callable[[Tensor, Tensor, Tensor], RowLoss]
"""(logits [R, D], target_probs [R, D], target_entropy [R]) -> losses."""


def forward_kl(logits: Tensor, target_probs: Tensor, target_entropy: Tensor) -> RowLoss:
    """KL from target to draft: sum over D of target_probs * log(target_probs / draft_probs).

    Args:
        logits: float32 [R, D].
        target_probs: float32 [R, D].
        target_entropy: float32 [R]. Minus the sum over D of target_probs * log(target_probs); it
            depends on the target alone, so it is computed once for all rows with one target row.
    """
    draft_probs = logits.softmax(-1)
    best = logits.amax(-1)
    # The largest draft probability is at least 1 / D, so its logarithm is safe.
    logsumexp = best - draft_probs.amax(-1).log()
    mass = target_probs.sum(-1)
    cross_entropy = mass * logsumexp - torch.linalg.vecdot(target_probs, logits)
    gradient = draft_probs.mul_(mass[:, None]).sub_(target_probs)
    return RowLoss(value=cross_entropy - target_entropy, gradient=gradient, best=best)


def lk_hybrid(logits: Tensor, target_probs: Tensor, target_entropy: Tensor) -> RowLoss:
    """Blend forward KL with the rejection rate: w * KL + (1 - w) * (1 - overlap).

    The overlap, sum over D of min(target_probs, draft_probs), is the rate at which rejection
    sampling accepts. w = exp(-3 * overlap) is held constant, so that training follows the KL while
    drafts are bad and the acceptance rate itself once they are good.
    """
    divergence = forward_kl(logits, target_probs, target_entropy)
    draft_probs = logits.softmax(-1)
    below = (draft_probs < target_probs).float()
    overlap = torch.minimum(draft_probs, target_probs).sum(-1)
    blend = torch.exp(-3.0 * overlap)[:, None]
    contested = draft_probs * below
    overlap_gradient = contested - draft_probs * contested.sum(-1, keepdim=True)
    return RowLoss(
        value=blend[:, 0] * divergence.value + (1 - blend[:, 0]) * (1 - overlap),
        gradient=blend * divergence.gradient - (1 - blend) * overlap_gradient,
        best=divergence.best,
    )


OBJECTIVES: dict[str, Objective] = {"kl": forward_kl, "lk_hybrid": lk_hybrid}
"""Objectives by the name that a configuration uses."""
