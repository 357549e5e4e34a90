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

    Its gradient is that of the cross-entropy with the target's distribution, which EAGLE-3 trains
    on (Li et al. 2025, section 3); there the distribution is renormalised on D, here it is not.

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

    1 - overlap is the total variation distance, which equals the chance that rejection sampling
    rejects (Leviathan et al. 2023, theorem 3.5).

    The overlap is the sum over D of min(target_probs, draft_probs). w = exp(-3 * overlap) is held
    constant, so that training follows the KL while drafts are bad and the acceptance rate itself
    once they are good.
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


def unlikelihood(logits: Tensor, refused: Tensor) -> RowLoss:
    """Unlikelihood of refused tokens: sum over them of -log(1 - draft_probs).

    Welleck et al., "Neural text generation with unlikelihood training" (2019), equation 4, with the
    drafts that the target refused as negative candidates. Beside the log-likelihood of the
    committed token it is what a rejected draft still teaches when only tokens are known; beside the
    target's whole distribution it would say nothing new.

    Args:
        logits: float32 [R, D].
        refused: float32 [R, D]. 1 at refused tokens, else 0.
    """
    draft_probs = logits.softmax(-1)
    allowed = (1 - draft_probs).clamp(min=SMALLEST_ALLOWED)
    odds = refused * draft_probs / allowed
    gradient = odds - draft_probs * odds.sum(-1, keepdim=True)
    return RowLoss(
        value=-(refused * allowed.log()).sum(-1), gradient=gradient, best=logits.amax(-1)
    )


SMALLEST_ALLOWED = 1e-6
"""1 - probability of a refused token, at least: a certain draft has a steep but finite loss."""

OBJECTIVES: dict[str, Objective] = {
    "kl": forward_kl,
    "lk_hybrid": lk_hybrid,
    "discard": forward_kl,
    "branches": forward_kl,
    "unlikelihood": forward_kl,
}
"""Loss of a row that has a target distribution, by the name of the objective that a configuration
uses. What sets the last three apart is which rows they add and what those weigh: see `weights`."""
