"""Lossless verification of one proposal, node by node, as the formulas have it.

At a node whose children are c1 .. cm in the order of the proposal, let r be the target's
distribution. Accept c_j, which was drawn from d_j, with probability min(1, r(c_j) / d_j(c_j));
if it is refused, r becomes max(r - d_j, 0), scaled to sum to 1, and the next child is judged. If
all are refused, draw from r (Leviathan et al., 2023, section 2.3, for chains; Miao et al.,
SpecInfer, 2023, section 4.3, for siblings drawn independently of each other).

Drafts that are deterministic functions of what was committed before are the case in which d_j has
all its mass on c_j, and a greedy request is the case in which r has all its mass on one token. All
walk a tree; a chain is the tree with one child per node.
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
    """Accept a path of the proposal, and take one token of the target after it.

    Args:
        proposal: with `drawn_from` where its tokens were sampled.
        logits_after: the target.
        sampling: the request's.
        generator: of the draws that decide.
    """
    path: list[int] = []
    while True:
        tokens = [proposal.token_ids[node] for node in path]
        left = distribution(logits_after(tokens), sampling)
        here = path[-1] if path else -1
        children = [node for node, parent in enumerate(proposal.parents) if parent == here]
        for node in children:
            token, draft = proposal.token_ids[node], drawn_from(proposal, node, len(left))
            draw = float(torch.rand((), generator=generator, dtype=torch.float64))
            if draw < _acceptance(left, draft, token):
                path.append(node)
                break
            left = _residual(left, draft)
        else:
            bonus = int(torch.multinomial(left, 1, generator=generator))
            return Accepted(path=tuple(path), bonus_token=bonus)


def drawn_from(proposal: Proposal, node: int, vocab_size: int) -> Tensor:
    """Return the distribution that a node's token was drawn from, float64 [vocab_size].

    All mass lies on the token itself where the proposal is deterministic.
    """
    dense = torch.zeros(vocab_size, dtype=torch.float64)
    if proposal.drawn_from is None:
        dense[proposal.token_ids[node]] = 1
    else:
        dense[proposal.drawn_from.token_ids] = proposal.drawn_from.probs[node].double()
    return dense


def _acceptance(left: Tensor, draft: Tensor, token: int) -> float:
    """Return the probability with which a token drawn from `draft` is accepted."""
    # A token that its own distribution excludes is a bug of the drafter, to be seen in the outcome.
    return min(1.0, float(left[token]) / max(float(draft[token]), 1e-12))


def _residual(left: Tensor, draft: Tensor) -> Tensor:
    """Return what is left to be drawn after a token of `draft` was refused."""
    rest = (left - draft).clamp(min=0)
    total = rest.sum()
    # Nothing is left only where the two differ by rounding: then either may be drawn from.
    return rest / total if total > 0 else left
