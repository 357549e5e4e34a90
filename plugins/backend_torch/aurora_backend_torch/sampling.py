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
from torch import Tensor

from aurora_core.records import Sampling
from aurora_core.sampling import pick, processed_probs


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
    probs, token_ids = processed_probs(logits, sampling)
    index = pick(probs, uniform)
    return index if token_ids is None else int(token_ids[index])
