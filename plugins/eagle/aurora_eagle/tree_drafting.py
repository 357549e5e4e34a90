"""Dynamic trees, for many requests at once: EAGLE-2 (arXiv 2406.16858), section 4.

A tree grows where the drafter is sure. The score of a node is the log-probability of its path. At
each depth the best nodes are expanded by their best children; at the end the best of all nodes are
proposed. A score never exceeds that of the parent, so the best nodes hold their ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from aurora_core.interfaces import Proposal
from aurora_eagle.draft_cache import Cache
from aurora_eagle.draft_start import Start
from aurora_eagle.serving_network import Places, ServingNetwork


@dataclass(slots=True)
class Candidates:
    """Nodes that one request may propose, parents before children, best siblings first."""

    max_nodes: int
    """Nodes that will be proposed at most."""
    least: float
    """Score below which a node is not proposed."""
    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """-1 for children of the root."""
    log_probs: list[float] = field(default_factory=list)
    """Given the parent's path, at most 0."""
    scores: list[float] = field(default_factory=list)
    """Log-probability of the whole path."""

    def add(self, parent: int, token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """Add the children of a node, -1 for the root."""
        path = self.scores[parent] if parent >= 0 else 0.0
        for token_id, log_prob in zip(token_ids, log_probs, strict=True):
            # Rounding can make a certain token's log-probability positive.
            log_prob = min(log_prob, 0.0)
            self.token_ids.append(token_id)
            self.parents.append(parent)
            self.log_probs.append(log_prob)
            self.scores.append(path + log_prob)

    def ranking(self) -> list[int]:
        """Return all nodes, the best score first; of equal ones the earlier."""
        # Sorting is stable.
        return sorted(range(len(self.scores)), key=lambda node: -self.scores[node])

    def to_expand(self, first: int, *, width: int, min_log_prob: float) -> list[int]:
        """Return the nodes to expand next, in their order.

        Left out is what cannot change the proposal: below a node that `max_nodes` - 1 others
        precede, all will be preceded by `max_nodes`.

        Args:
            first: nodes from here on are leaves of the deepest level.
            width: nodes to return at most.
            min_log_prob: least score to be expanded with.
        """
        worth = [
            node
            for node in self.ranking()[: self.max_nodes - 1]
            if node >= first and self.scores[node] >= max(min_log_prob, self.least)
        ]
        return sorted(worth[:width])

    def proposal(self) -> Proposal:
        """Return the best `max_nodes` nodes, or fewer if only fewer are good enough."""
        best = self.ranking()[: self.max_nodes]
        kept = sorted(node for node in best if self.scores[node] >= self.least)
        index = {node: place for place, node in enumerate(kept)} | {-1: -1}
        return Proposal(
            token_ids=[self.token_ids[node] for node in kept],
            parents=[index[self.parents[node]] for node in kept],
            log_probs=[self.log_probs[node] for node in kept],
        )


@dataclass(slots=True)
class _Beam:
    """A node that the network has just read, or the root."""

    tree: int
    node: int
    path: list[int]
    """Entries of the cache that hold it and its ancestors, from the root's child down."""


def drafted_rows(depth: int, width: int) -> int:
    """Return the cache entries that a tree of this depth needs behind the target's."""
    # `attend` lays a path of up to `depth` rows out before all nodes, which lie behind it.
    return depth + max(0, depth - 1) * width


def draft_trees(
    network: ServingNetwork,
    start: Start,
    caches: Sequence[Cache],
    *,
    width: int,
    min_log_prob: float,
    least: float,
) -> list[Proposal]:
    """Return the tree that follows each start.

    Args:
        network: is stepped once per depth, on all nodes that are expanded.
        start: where to begin.
        caches: of the call, with `drafted_rows` entries behind the target's; these are overwritten.
        width: nodes that a tree expands at each depth, and children of each.
        min_log_prob: a node is not expanded if its path's log-probability is less.
        least: a node is not proposed if its path's log-probability is less.
    """
    trees = [Candidates(max_nodes, least) for max_nodes in start.max_nodes]
    owners, roots = start.places.owner.tolist(), start.places.position.tolist()
    prefixes = (start.places.slot + 1).tolist()
    free = [prefix + limit for prefix, limit in zip(prefixes, start.limit, strict=True)]
    beams = [_Beam(tree, -1, []) for tree in range(len(trees))]
    hidden = start.hidden
    depth = 0
    while True:
        token_ids, log_probs = (values.tolist() for values in network.top(hidden, width))
        depth += 1
        first = [len(tree.scores) for tree in trees]
        for beam, tokens, theirs in zip(beams, token_ids, log_probs, strict=True):
            trees[beam.tree].add(beam.node, tokens, theirs)
        # Row of the network's output that each node was chosen from.
        rows = {(beam.tree, beam.node): row for row, beam in enumerate(beams)}
        growing: list[_Beam] = []
        origins: list[int] = []
        for index in dict.fromkeys(beam.tree for beam in beams):
            if depth == start.limit[index]:
                continue
            tree = trees[index]
            for node in tree.to_expand(first[index], width=width, min_log_prob=min_log_prob):
                row = rows[index, tree.parents[node]]
                growing.append(_Beam(index, node, [*beams[row].path, free[index]]))
                origins.append(row)
                free[index] += 1
        if not growing:
            return [tree.proposal() for tree in trees]
        beams = growing

        def column(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, device=network.device)

        places = Places(
            column([owners[beam.tree] for beam in beams]),
            column([roots[beam.tree] + depth for beam in beams]),
            column([beam.path[-1] for beam in beams]),
        )
        hidden = hidden[column(origins)]
        x = network.read(column([trees[beam.tree].token_ids[beam.node] for beam in beams]), hidden)
        hidden = network.step(
            hidden,
            x,
            places,
            caches,
            length=column([prefixes[beam.tree] + depth for beam in beams]),
            branch=torch.tensor([beam.path for beam in beams], device=network.device),
        )
