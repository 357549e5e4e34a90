"""Trees by hand, against brute force, and what is measured of the heads."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from aurora_medusa.candidate_tree import (
    Tree,
    TreeNode,
    chain,
    cut_tree,
    default_accuracy,
    expected_accepted,
    grow_tree,
)
from aurora_medusa.config import MAX_TREE_NODES, NUM_RANKS
from aurora_medusa.rank_accuracy import FORGETTING, PRIOR_ROWS, RankAccuracy


def paths(tree: Tree) -> list[tuple[int, ...]]:
    """Return each node's ranks from the root; fails unless parents come before children."""
    found: list[tuple[int, ...]] = []
    for node in tree:
        before = () if node.parent < 0 else found[node.parent]
        found.append((*before, node.rank))
        assert len(found[-1]) == node.depth
    return found


def test_the_tree_holds_the_likeliest_paths_in_order() -> None:
    # Reach: (0) .6, (0, 0) .3, (1) .2, (0, 1) .12, (1, 0) .1, (1, 1) .04
    tree = grow_tree([[0.6, 0.2], [0.5, 0.2]], 5)
    assert paths(tree) == [(0,), (0, 0), (1,), (0, 1), (1, 0)]
    assert [node.reach for node in tree] == pytest.approx([0.6, 0.3, 0.2, 0.12, 0.1])


def test_expected_tokens_by_hand() -> None:
    accuracy = [[0.6, 0.2], [0.5, 0.2]]
    assert expected_accepted(grow_tree(accuracy, 3), accuracy) == pytest.approx(0.6 + 0.3 + 0.2)
    assert expected_accepted(chain(2), accuracy) == pytest.approx(0.6 + 0.3)
    # A tree grown for other heads is judged by these.
    assert expected_accepted(grow_tree([[0.1, 0.9]], 1), accuracy) == pytest.approx(0.2)
    assert expected_accepted((), accuracy) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_no_tree_of_the_same_size_expects_more(seed: int) -> None:
    chance = random.Random(seed)
    # Not falling with the rank: measured accuracies of few rows need not.
    accuracy = [[chance.random() / 2 for _ in range(2)] for _ in range(3)]
    every = [path for depth in (1, 2, 3) for path in itertools.product(range(2), repeat=depth)]
    for size in (1, 3, 4):
        best = 0.0
        for chosen in itertools.combinations(every, size):
            if all(path[:-1] in (*chosen, ()) for path in chosen):
                reach = (
                    math.prod(accuracy[k][rank] for k, rank in enumerate(path)) for path in chosen
                )
                best = max(best, sum(reach))
        assert expected_accepted(grow_tree(accuracy, size), accuracy) == pytest.approx(best)


def test_every_first_part_of_a_tree_is_the_best_tree_of_its_size() -> None:
    accuracy = default_accuracy(4)
    whole = grow_tree(accuracy)
    assert len(whole) == MAX_TREE_NODES
    for size in (1, 8, 30):
        assert grow_tree(accuracy, size) == whole[:size]
        assert cut_tree(whole, max_depth=4, max_nodes=size) == whole[:size]


def test_equal_chances_are_ordered_in_one_way() -> None:
    assert paths(grow_tree([[0.0, 0.0], [0.0, 0.0]], 6)) == [
        (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)
    ]  # fmt: skip


def test_a_small_tree_for_a_cpu_has_depth_and_width() -> None:
    eight = cut_tree(grow_tree(default_accuracy(5)), max_depth=5, max_nodes=8)
    assert max(node.depth for node in eight) >= 3
    assert sum(node.depth == 1 for node in eight) >= 2


def test_limits_cut_a_tree_and_name_parents_anew() -> None:
    tree = grow_tree([[0.5, 0.4], [0.5, 0.1], [0.9]], 9)
    assert paths(tree)[:4] == [(0,), (1,), (0, 0), (0, 0, 0)]
    shallow = cut_tree(tree, max_depth=2, max_nodes=4)
    assert paths(shallow) == [(0,), (1,), (0, 0), (1, 0)]
    assert cut_tree(tree, max_depth=0, max_nodes=4) == ()
    assert cut_tree(tree, max_depth=3, max_nodes=0) == ()
    # Reach of (0, 1) is 0.05, of (0, 0) 0.25.
    assert all(
        node.reach >= 0.2 for node in cut_tree(tree, max_depth=3, max_nodes=9, min_reach=0.2)
    )


def test_a_node_without_its_parent_is_left_out() -> None:
    tree = (TreeNode(-1, 1, 0, 0.1), TreeNode(-1, 1, 1, 0.05), TreeNode(1, 2, 0, 0.5))
    kept = cut_tree(tree, max_depth=2, max_nodes=3, min_reach=0.2)
    assert paths(kept) == [(0,)]


def test_the_first_node_is_tried_however_unlikely() -> None:
    assert len(cut_tree(grow_tree([[0.01]]), max_depth=1, max_nodes=8, min_reach=0.5)) == 1


def test_accuracy_starts_from_the_default_and_follows_what_is_seen() -> None:
    accuracy = RankAccuracy(2)
    first, second = default_accuracy(2)
    assert accuracy.estimate()[0] == pytest.approx(first)
    accuracy.add([[1, 3], [0, 0]], [4, 0])
    kept = FORGETTING * PRIOR_ROWS
    measured = accuracy.estimate()
    assert measured[0][0] == pytest.approx((kept * first[0] + 1) / (kept + 4))
    assert measured[0][1] == pytest.approx((kept * first[1] + 3) / (kept + 4))
    # Ranks that were not given were not hit; a head without rows keeps what it has.
    assert measured[0][2] == pytest.approx(kept * first[2] / (kept + 4))
    assert measured[1] == pytest.approx(second)


def test_old_observations_are_forgotten() -> None:
    accuracy = RankAccuracy(1)
    for _ in range(400):
        accuracy.add([[8, 0]], [8])
    for _ in range(400):
        accuracy.add([[0, 8]], [8])
    best, second = accuracy.estimate()[0][:2]
    assert best < 0.01 < 0.99 < second
    assert grow_tree(accuracy.estimate(), 1)[0].rank == 1


def test_a_copy_goes_its_own_way() -> None:
    accuracy = RankAccuracy(1)
    copied = accuracy.copy()
    copied.add([[0] * NUM_RANKS], [8])
    assert accuracy.estimate()[0] == pytest.approx(default_accuracy(1)[0])
    assert copied.estimate()[0][0] < accuracy.estimate()[0][0]
