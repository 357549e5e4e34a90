"""Lossless verification of one proposal, node by node, as the formulas have it.

Greedy: follow the child that is the target's best token. Sampled, with drafts that are
deterministic functions of what was committed before: at a node whose children are c1 .. cm in the
order of the proposal, accept c_j with the target's probability of it, given that c1 .. c_(j-1) were
refused; if all were, draw from what is left (the point-mass case of speculative sampling;
Leviathan et al., 2023, appendix A, and Miao et al., SpecInfer, 2023, section 4.3).

Both walk a tree; a chain is the tree with one child per node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_core.interfaces import Proposal
from aurora_core.records import Sampling

LogitsAfter = Callable[[Sequence[int]], Tensor]
"""Draft tokens from the root on -> the target's logits [V] for the token after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What verification committed."""

    path: tuple[int, ...]
    """Indices of the accepted nodes, from the root downwards."""
    bonus_token: int
    """The target's own token after them."""


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the distribution that a request samples from, float64 [V].

    Temperature first, then the `top_k` largest, then the smallest set of largest probabilities
    that reaches `top_p`. At temperature 0 all mass lies on the best token.
    """
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    probabilities = (logits.double() / sampling.temperature).softmax(-1)
    order = probabilities.argsort(descending=True, stable=True)
    if sampling.top_k:
        order = order[: sampling.top_k]
    largest = probabilities[order] / probabilities[order].sum()
    before = largest.cumsum(0) - largest
    order = order[before < sampling.top_p]
    kept = torch.zeros_like(probabilities)
    kept[order] = probabilities[order]
    return kept / kept.sum()


def verify(
    proposal: Proposal, logits_after: LogitsAfter, sampling: Sampling, generator: torch.Generator
) -> Accepted:
    """Accept a path of the proposal, and take one token of the target after it."""
    path: list[int] = []
    while True:
        tokens = [proposal.token_ids[node] for node in path]
        left = distribution(logits_after(tokens), sampling)
        here = path[-1] if path else -1
        children = [node for node, parent in enumerate(proposal.parents) if parent == here]
        for node in children:
            token = proposal.token_ids[node]
            if float(torch.rand((), generator=generator, dtype=torch.float64)) < left[token]:
                path.append(node)
                break
            left = _without(left, token)
        else:
            bonus = int(torch.multinomial(left, 1, generator=generator))
            return Accepted(path=tuple(path), bonus_token=bonus)


def _without(left: Tensor, token: int) -> Tensor:
    """Return the distribution given that it is not this token."""
    rest = left.clone()
    rest[token] = 0
    return rest / rest.sum()
