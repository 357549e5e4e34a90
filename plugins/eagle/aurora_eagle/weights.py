"""How much each supervised row counts: by its depth, its branch and who drafted it. Pure functions.

Shape legend:
    K  draft positions, the first one is 0    A  anchors    N  rejected nodes    B  traces

Objectives of the configuration, with l(row) the row's loss (`losses`), d(k) the weight of draft
position k, "committed" the rows whose context was committed, "rejected" those at rejected nodes:

    kl, lk_hybrid   mean over committed of d(k) l
    discard         mean over committed of d(k) l + discard_weight * mean over rejected of d(k) l
    branches        weighted mean over both; a rejected row weighs d(k) max(reach, branch_floor)
    unlikelihood    mean over committed of d(k) (-log draft(committed token)
                    + refusal_weight * sum over refused tokens of -log(1 - draft(refused token)))
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_DEPTH_WEIGHT = 0.05
"""A draft position that was never reached must still learn, or it would never be reached."""


def fixed_depth_weights(num_steps: int, decay: float) -> Tensor:
    """Return float32 [K]: decay ** k, as EAGLE-3 weighs its steps (0.8 ** k in its own code)."""
    return decay ** torch.arange(num_steps).float()


def reach_depth_weights(right: Tensor, judged: Tensor, trace: Tensor, num_traces: int) -> Tensor:
    """Return float32 [K, B]: the measured chance that draft position k is reached in each trace.

    The expected number of accepted tokens is the sum over k of the product of the acceptance rates
    up to k. Its derivative with respect to the rate at k has the product of those before k as a
    factor, the chance that position k matters at all. Never below `LEAST_DEPTH_WEIGHT`.

    Measured in each trace by itself, so that what a trace weighs does not depend on what shares a
    batch with it: losses of batches, and of ranks that train together, add up.

    Args:
        right: bool [K, A]. Whether the drafter's best token was the committed one.
        judged: bool [K, A]. Whether that is known.
        trace: int64 [A]. Of each anchor.
        num_traces: B.
    """
    counts = []
    for chains in ((right & judged).cumprod(0)[:-1], judged.cumprod(0)[:-1]):
        sums = torch.zeros(len(chains), num_traces, device=right.device)
        counts.append(sums.index_add_(1, trace, chains.float()))
    reached = counts[0] / counts[1].clamp(min=1)
    first = torch.ones(1, num_traces, device=right.device)
    return torch.cat([first, reached]).clamp(min=LEAST_DEPTH_WEIGHT)


def discard_weights(rejected: Tensor, committed_sum: Tensor, discard_weight: float) -> Tensor:
    """Return float32 [N]: weights that make rejected rows a mean of their own.

    Discard sampling as Aurora describes it (Together AI, 2026): the expectation of the divergence
    over accepted states plus lambda times its expectation over discarded ones. Both are normalised
    apart, so lambda says what all rejected rows count beside all committed ones, however many there
    are. The total is to be divided by the weights of the committed rows alone. The filter to the
    likeliest tokens is left out: its authors found it to matter little.

    Args:
        rejected: float32 [N]. Weights by depth, 0 without a target row.
        committed_sum: float32 []. Sum of the weights of all committed rows.
        discard_weight: lambda.
    """
    scale = discard_weight * committed_sum / rejected.sum().clamp(min=1e-12)
    return rejected * torch.where(rejected.sum() > 0, scale, 0.0)


def branch_weights(rejected: Tensor, reach: Tensor, floor: float) -> Tensor:
    """Return float32 [N]: weights of rejected rows by the chance that a request gets there.

    On-policy distillation (Agarwal et al. 2024, GKD) on the states that the drafter itself visits.
    A row matters to the expected accepted length as much as the target would let drafts come to it;
    below a rejected node that is little, and `floor` keeps it from being nothing.

    Args:
        rejected: float32 [N]. Weights by depth, 0 without a target row.
        reach: float32 [N]. Product of the target's probabilities of the rejected tokens that lead
            to each node, its own included: at which a point mass is accepted.
        floor: smallest factor.
    """
    return rejected * reach.clamp(min=floor)


def clipped_ratios(now: Tensor, then: Tensor, parent: Tensor, limit: float) -> Tensor:
    """Return float32 [N]: how much likelier today's drafter is to go to each node, at most `limit`.

    Rejected nodes are samples of the drafter that was live; as learning goes on, other states are
    visited. The ratio is the product along the branch of today's over that day's probabilities and
    is truncated from above (Ionides 2008; the rho of V-trace, Espeholt et al. 2018). The target's
    rows need no such thing: they are exact on any state.

    Args:
        now: float32 [N]. Log-probability of each node's token under the weights in training.
        then: float32 [N]. Under the drafter that proposed it; NaN counts as unchanged.
        parent: int64 [N]. Index of each node's parent, before its own; -1 for a committed token.
        limit: largest factor.
    """
    return _along_branches(torch.nan_to_num(now - then, nan=0.0), parent).exp().clamp(max=limit)


def reach_of(target_log_prob: Tensor, parent: Tensor) -> Tensor:
    """Return float32 [N]: the product of the target's probabilities along each branch.

    Args:
        target_log_prob: float32 [N]. Of each node's token after its parent.
        parent: int64 [N]. As in `clipped_ratios`.
    """
    return _along_branches(target_log_prob, parent).exp()


def _along_branches(values: Tensor, parent: Tensor) -> Tensor:
    """Return each node's sum of values over itself and the nodes above it."""
    total, above = values.clone(), parent
    while bool((above >= 0).any()):
        at = above.clamp(min=0)
        total = total + values[at].masked_fill(above < 0, 0.0)
        above = parent[at].masked_fill(above < 0, -1)
    return total
