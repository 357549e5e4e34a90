"""What a request's sampling parameters make of a model's logits. Imports torch."""

from __future__ import annotations

import torch
from torch import Tensor

from aurora_core.records import Sampling


def processed_probs(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
    """Return the tempered and truncated distribution of one row.

    top_k keeps the k most likely tokens; top_p then keeps the smallest set of the most likely ones
    whose mass, renormalised, reaches top_p.

    Args:
        logits: [V].
        sampling: with a temperature above 0.

    Returns:
        (probabilities [n], token ids [n]), most likely first; (probabilities [V], None) in
        vocabulary order when nothing is cut off.
    """
    scaled = logits.float() / sampling.temperature
    if not sampling.top_k and sampling.top_p >= 1.0:
        return scaled.softmax(0), None
    num_kept = min(sampling.top_k or len(scaled), len(scaled))
    values, token_ids = scaled.topk(num_kept)
    probs = values.softmax(0)
    if sampling.top_p < 1.0:
        before = probs.cumsum(0) - probs
        probs = torch.where(before < sampling.top_p, probs, 0.0)
        probs[0] = probs[0].clamp(min=torch.finfo(probs.dtype).tiny)
    return probs / probs.sum(), token_ids


def dense_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return `processed_probs` over all of [V], float64; zero where cut off."""
    probs, token_ids = processed_probs(logits, sampling)
    if token_ids is None:
        return probs.double()
    dense = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    dense[token_ids] = probs.double()
    return dense


def pick(probs: Tensor, uniform: float) -> int:
    """Return the index at which the cumulative sum of `probs` passes a number.

    Args:
        probs: [n]; need not sum to 1 exactly, for the number is scaled to their sum.
        uniform: in [0, 1).
    """
    cumulative = probs.double().cumsum(0)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    return min(index, len(cumulative) - 1)
