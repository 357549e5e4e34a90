"""Which combinations of the heads' best tokens a proposal holds. Pure functions; imports no torch.

A path names one rank for each head from the first on: (1, 0) is the second best token of head 0,
followed by the best token of head 1. With accuracy[k][r] the chance that the token of rank r of
head k is the committed one, and heads taken as independent, a path is accepted with the product of
its accuracies. Siblings exclude each other, so a tree's expected number of accepted tokens is the
sum over its nodes, and the best tree with n nodes holds the n likeliest paths: the greedy
construction of the Medusa paper, section 2.3.3.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from aurora_medusa.config import MAX_TREE_NODES, NUM_RANKS

Accuracy = Sequence[Sequence[float]]
"""[head][rank] -> chance that this token is the committed one."""

PRIOR_HIT, PRIOR_HEAD_DECAY, PRIOR_RANK_DECAY = 0.6, 0.75, 0.3
"""Of `default_accuracy`: the best token of head 0, the next head, and the next rank."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One draft token of a proposal."""

    parent: int
    """Index of the parent in the tree, -1 for a child of the root."""
    depth: int
    """1 for a child of the root; the token is of head `depth - 1`."""
    rank: int
    """0 for the head's best token."""
    reach: float
    """Estimated chance that the token and all before it are accepted."""


Tree = tuple[TreeNode, ...]
"""Parents before children, likelier nodes first."""


def default_accuracy(num_heads: int) -> list[list[float]]:
    """Return plausible accuracies, [num_heads][NUM_RANKS], for heads that nobody has measured."""
    return [
        [PRIOR_HIT * PRIOR_HEAD_DECAY**head * PRIOR_RANK_DECAY**rank for rank in range(NUM_RANKS)]
        for head in range(num_heads)
    ]


def grow_tree(accuracy: Accuracy, max_nodes: int = MAX_TREE_NODES) -> Tree:
    """Return the tree of at most `max_nodes` nodes with the most expected accepted tokens.

    Nodes come in the order in which they are worth having: every first part of the tree is the best
    tree of its own size. Of equally likely paths the shorter comes first, then the one with the
    better ranks.
    """
    tree: list[TreeNode] = []
    # (-reach, depth, path, index of the parent)
    heap: list[tuple[float, int, tuple[int, ...], int]] = []

    def add_children(parent: int, path: tuple[int, ...], reach: float) -> None:
        if len(path) < len(accuracy):
            for rank, chance in enumerate(accuracy[len(path)]):
                child = (*path, rank)
                heapq.heappush(heap, (-reach * chance, len(child), child, parent))

    add_children(-1, (), 1.0)
    while heap and len(tree) < max_nodes:
        negative_reach, depth, path, parent = heapq.heappop(heap)
        tree.append(TreeNode(parent, depth, path[-1], -negative_reach))
        add_children(len(tree) - 1, path, -negative_reach)
    return tuple(tree)


def chain(num_heads: int) -> Tree:
    """Return the tree of every head's best token alone, of unknown reach."""
    return tuple(TreeNode(depth - 2, depth, 0, math.nan) for depth in range(1, num_heads + 1))


def cut_tree(tree: Tree, *, max_depth: int, max_nodes: int, min_reach: float = 0.0) -> Tree:
    """Return what is left of a tree within limits, its first nodes before others.

    The first node is worth trying however unlikely: nothing is learned from what is not tried.

    Args:
        tree: as `grow_tree` or `chain` gives it.
        max_depth: depth of the deepest node, at most.
        max_nodes: nodes, at most.
        min_reach: nodes of less reach are left out, but for the first; an unknown reach stays.
    """
    kept: list[TreeNode] = []
    new_index: dict[int, int] = {-1: -1}
    for index, node in enumerate(tree):
        if len(kept) == max_nodes:
            break
        is_unlikely = node.reach < min_reach and kept
        if node.depth > max_depth or is_unlikely or node.parent not in new_index:
            continue
        new_index[index] = len(kept)
        kept.append(TreeNode(new_index[node.parent], node.depth, node.rank, node.reach))
    return tuple(kept)


def expected_accepted(tree: Tree, accuracy: Accuracy) -> float:
    """Return the expected number of accepted tokens, without the target's own.

    Args:
        tree: what is proposed.
        accuracy: of the heads; the tree may have been grown with another one.
    """
    reach: list[float] = []
    for node in tree:
        before = 1.0 if node.parent < 0 else reach[node.parent]
        reach.append(before * accuracy[node.depth - 1][node.rank])
    return math.fsum(reach)
