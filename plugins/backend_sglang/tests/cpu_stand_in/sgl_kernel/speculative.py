"""The tree of n-gram drafts, which arrives as a mask instead of links."""

from __future__ import annotations

from torch import Tensor


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    lengths: Tensor,
    positions: Tensor,
    rows: Tensor,
    first_child: Tensor,
    next_sibling: Tensor,
    batch_size: int,
    num_nodes: int,
) -> None:
    """Write links and positions of every tree, from what each of its nodes sees.

    Args:
        tree_mask: [B * n * n] whether a node, by row, sees another one.
        lengths: [B] committed tokens.
        positions: [B * n] receives the positions of the nodes.
        rows: [B, n] receives the rows of the nodes in the batch.
        first_child: [B, n] receives the first child, -1 for none.
        next_sibling: [B, n] receives the next child of the same parent, -1 for none.
    """
    size = num_nodes * num_nodes
    masks = tree_mask.view(-1)[: batch_size * size].view(batch_size, num_nodes, num_nodes).bool()
    for request in range(batch_size):
        ancestors = [
            [node for node in range(below) if bool(masks[request, below, node])]
            for below in range(num_nodes)
        ]
        parent = [max(nodes, default=-1) for nodes in ancestors]
        for node in range(num_nodes):
            later = range(node + 1, num_nodes)
            first = request * num_nodes
            positions.view(-1)[first + node] = int(lengths[request]) + len(ancestors[node])
            rows.view(batch_size, num_nodes)[request, node] = first + node
            children = [other for other in later if parent[other] == node]
            siblings = [other for other in later if parent[other] == parent[node] != -1]
            first_child.view(batch_size, num_nodes)[request, node] = min(children, default=-1)
            next_sibling.view(batch_size, num_nodes)[request, node] = min(siblings, default=-1)
