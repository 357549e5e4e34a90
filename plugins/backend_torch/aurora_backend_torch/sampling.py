"""The target's own choice of each token.

A sampled token is the inverse of the cumulative distribution at a number that depends on the
request's seed and the token's position alone. A draft token is accepted if and only if it equals
that choice, so the output is the same, token by token, with any drafter or none. Drafts are
deterministic, and a draft token x is accepted with the target's probability of x: the point-mass
case of speculative sampling (Leviathan et al. 2023, section 2.3), with the residual distribution
realised by the same draw.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from aurora_core.records import Sampling


def choose(logits: Tensor, best: int, sampling: Sampling, seed: int, position: int) -> int:
    """Return the token that the target puts at `position`.

    Args:
        logits: float32 [V], of the row before `position`.
        best: argmax of the logits, the answer when the request is greedy.
        sampling: the request's parameters.
        seed: of the request; drawn once if the request gave none.
        position: index of the token to choose.
    """
    if sampling.temperature == 0.0:
        return best
    uniform = float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())
    probs, token_ids = target_probs(logits, sampling)
    cumulative = probs.double().cumsum(0)
    # The last sum is 1 up to rounding; scaling keeps the draw inside the table.
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    index = min(index, len(cumulative) - 1)
    return index if token_ids is None else int(token_ids[index])


def target_probs(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
    """Return the tempered and truncated distribution of one row.

    top_k keeps the k most likely tokens; top_p then keeps the smallest set of the most likely ones
    whose mass, renormalised, reaches top_p.

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
