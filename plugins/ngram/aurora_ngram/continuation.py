"""Turns earlier places of a text's end into a proposal: what followed there, and how often.

As in SuffixDecoding (Oliaro et al. 2024, sections 3 and 4), the continuations of all places form
a tree of tokens whose counts give probabilities, and its likeliest part is drafted. Here a place
with a longer match weighs more, instead of hiding those with a shorter one, and some weight is kept
for a token that followed nowhere, as in prediction by partial matching: a single place with a short
match is not certainty.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from aurora_core.interfaces import Proposal
from aurora_ngram.text_index import TextIndex

UNSEEN_WEIGHT = 1.0
"""Weight of all tokens that followed nowhere; a place with the shortest match weighs as much."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where texts that agreed so far go on, one entry per place in each list."""

    texts: list[TextIndex]
    positions: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a proposal must not exceed."""

    max_depth: int
    max_nodes: int
    num_branches: int
    """Children of one node."""
    min_confidence: float
    """Probability of a node's whole path."""


def continue_text(places: Places, limits: Limits) -> Proposal:
    """Return the likeliest continuations, the likeliest node first and parents before children.

    The first of equally likely ones is that of the place that is listed first.
    """
    token_ids: list[int] = []
    parents: list[int] = []
    log_probs: list[float] = []
    # (-probability of the path, order of discovery, token, parent, depth, its own probability,
    # indices of the places that go on behind it).
    waiting: list[tuple[float, int, int, int, int, float, list[int]]] = []
    num_found = 0

    def grow(agreeing: Sequence[int], parent: int, depth: int, confidence: float) -> None:
        nonlocal num_found
        likeliest = _next_tokens(places, agreeing, depth)[: limits.num_branches]
        for token, probability, behind in likeliest:
            of_path = confidence * probability
            if of_path >= limits.min_confidence:
                entry = (-of_path, num_found, token, parent, depth, probability, behind)
                heapq.heappush(waiting, entry)
                num_found += 1

    if limits.max_depth > 0:
        grow(range(len(places.texts)), -1, 1, 1.0)
    while waiting and len(token_ids) < limits.max_nodes:
        negated, _, token, parent, depth, probability, behind = heapq.heappop(waiting)
        token_ids.append(token)
        parents.append(parent)
        log_probs.append(math.log(probability))
        if depth < limits.max_depth:
            grow(behind, len(token_ids) - 1, depth + 1, -negated)
    return Proposal(token_ids=token_ids, parents=parents, log_probs=log_probs)


def _next_tokens(
    places: Places, agreeing: Sequence[int], depth: int
) -> list[tuple[int, float, list[int]]]:
    """Return (token, probability, places behind it), the likeliest first, then as they were met."""
    total = UNSEEN_WEIGHT
    weights: dict[int, float] = {}
    behind: dict[int, list[int]] = {}
    for index in agreeing:
        weight = places.weights[index]
        total += weight
        token = places.texts[index].token(places.positions[index] + depth - 1)
        if token is None:
            continue
        if token in weights:
            weights[token] += weight
            behind[token].append(index)
        else:
            weights[token], behind[token] = weight, [index]
    order = sorted(weights, key=lambda token: -weights[token])
    return [(token, weights[token] / total, behind[token]) for token in order]
