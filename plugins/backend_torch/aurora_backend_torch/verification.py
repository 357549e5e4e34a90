"""Which branch of a draft tree is committed: two lossless rules.

Deterministic drafts: every token is the target's own choice at its position (`sampling.choose`),
and drafts that foresaw it are accepted. The output is the same with any drafter or none. A node
with children c_1 .. c_m is left for one of them with the target's probability of that child, the
same as if they were tried in turn (He et al. 2024, REST; Cai et al. 2024, Medusa, with exact
acceptance).

Sampled drafts: rejection sampling. A draft x drawn from q is accepted with min(1, p(x) / q(x)); a
rejected one leaves the residual norm(max(p - q, 0)) for its next sibling, and at last for the token
that the target adds (Leviathan et al. 2023, section 2.3; Miao et al. 2024, SpecInfer, algorithm 2).
The output has the target's distribution, but which sample it is depends on the drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aurora_backend_torch.draft_tree import ROOT, DraftTree
from aurora_backend_torch.sampling import choose
from aurora_core.interfaces import DraftDistributions
from aurora_core.records import Sampling
from aurora_core.sampling import dense_probs, pick

DRAFT_STREAM, VERIFY_STREAM = 1, 2
"""Streams of random numbers beside the one of `sampling.choose`, so that none is used twice."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification step commits."""

    token_ids: list[int]
    """Accepted draft tokens and the target's own after them: one more than `accepted`, unless the
    last draft accepted ends the request."""
    accepted: list[int]
    """Nodes of the tree, from the root's child down."""


Ends = Callable[[list[int]], bool]
"""Whether a request ends with the tokens committed so far in this step."""


def follow_own_choice(
    tree: DraftTree,
    logits: Tensor,
    best: Sequence[int],
    *,
    sampling: Sampling,
    seed: int,
    start: int,
    ends: Ends,
) -> Verified:
    """Verify deterministic drafts.

    Args:
        tree: the drafts.
        logits: [1 + n, V]; row 0 is the root's, row i + 1 that of node i.
        best: argmax of each row.
        sampling: the request's.
        seed: the request's.
        start: position of the root.
        ends: see `Ends`.
    """
    chosen: list[int] = []
    accepted: list[int] = []
    node = ROOT
    while True:
        row, position = node + 1, start + len(chosen) + 1
        chosen.append(choose(logits[row], best[row], sampling, seed, position))
        # The last token chosen is the target's own, whether or not a draft foresaw it: tokens
        # per step are then 1 + accepted, also in a step that a stop token cuts short.
        child = None if ends(chosen) else tree.child(node, chosen[-1])
        if child is None:
            return Verified(chosen, accepted)
        accepted.append(child)
        node = child


def reject_or_accept(
    tree: DraftTree,
    drawn_from: DraftDistributions,
    logits: Tensor,
    *,
    sampling: Sampling,
    seed: int,
    start: int,
    ends: Ends,
) -> Verified:
    """Verify drafts that were sampled from `drawn_from`; see `follow_own_choice`."""
    chosen: list[int] = []
    accepted: list[int] = []
    node = ROOT
    while True:
        draws = uniforms(seed, VERIFY_STREAM, start + len(chosen) + 1, len(tree.token_ids) + 1)
        left = dense_probs(logits[node + 1], sampling)
        taken = None
        for child in tree.children(node):
            draft = torch.zeros_like(left)
            draft[drawn_from.token_ids] = drawn_from.probs[child].double()
            token = tree.token_ids[child]
            if draws[child] * float(draft[token]) < float(left[token]):
                taken = child
                break
            left = (left - draft).clamp(min=0.0)
            left = left / left.sum()
        if taken is None:
            chosen.append(pick(left, draws[-1]))
            return Verified(chosen, accepted)
        chosen.append(tree.token_ids[taken])
        if ends(chosen):
            return Verified(chosen, accepted)
        accepted.append(taken)
        node = taken


def uniforms(seed: int, stream: int, position: int, count: int) -> list[float]:
    """Return numbers in [0, 1) that depend on nothing but the arguments."""
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, position, stream, 0]))
    return list(generator.random(count))
