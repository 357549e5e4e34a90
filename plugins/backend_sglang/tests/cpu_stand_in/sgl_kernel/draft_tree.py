"""Trees of draft tokens: building, verifying, and what follows from what was accepted.

A tree has n nodes, of which node 0 is the root, the last committed token. It is written as links:
the first child of each node and the next sibling of each node, -1 for none.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FULL_MASK = 0
_DRAFT_MASK = 1


def build_tree_kernel_efficient_cpu(
    parents: Tensor,
    chosen: Tensor,
    lengths: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    rows: Tensor,
    first_child: Tensor,
    next_sibling: Tensor,
    topk: int,
    depth: int,
    num_nodes: int,
    mask_mode: int,
) -> None:
    """Write links, positions and visibility of every request's tree into the tensors given.

    Args:
        parents: [B, ...] for each group of `topk` candidates, the candidate that it hangs below.
        chosen: [B, n - 1] candidates that became nodes, in order.
        lengths: [B] committed tokens.
        tree_mask: bool, flat. What each node sees: of the tree alone, or of the context as well.
        positions: [B * n]
        rows: [B, n] row of each node in the batch.
        first_child: [B, n]
        next_sibling: [B, n]
    """
    if int(mask_mode) not in (_FULL_MASK, _DRAFT_MASK):
        raise NotImplementedError("the CPU stand-in knows no bit-packed masks")
    written = 0
    for request, length in enumerate(lengths.tolist()):
        parent = _parents(parents[request].tolist(), chosen[request].tolist(), topk)
        first = request * num_nodes
        rows[request] = torch.arange(first, first + num_nodes)
        for node in range(num_nodes - 1, 0, -1):
            below = int(first_child[request, parent[node]])
            first_child[request, parent[node]] = node
            if below != -1:
                next_sibling[request, node] = below
        visible = torch.zeros(num_nodes, num_nodes, dtype=torch.bool)
        for node in range(num_nodes):
            path = _path_to_root(node, parent)
            visible[node, path] = True
            positions[first + node] = length + len(path) - 1
        if int(mask_mode) == _DRAFT_MASK:
            size = num_nodes * num_nodes
            tree_mask[request * size : (request + 1) * size] = visible.flatten()
        else:
            size = num_nodes * (length + num_nodes)
            whole = tree_mask[written : written + size].view(num_nodes, length + num_nodes)
            whole[:, length:] = visible
            written += size


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk every tree along the target's own tokens. SGLang gives the arguments by these names.

    Args:
        predicts: [B * n] receives the target's token at each row walked over.
        accept_index: [B, depth] receives the rows walked over, the root's first.
        accept_token_num: [B] receives the number of draft tokens walked over.
        candidates: [B, n] tokens of the nodes.
        retrive_index: [B, n] row of each node in the batch.
        retrive_next_token: [B, n] first child of each node.
        retrive_next_sibling: [B, n] next sibling of each node.
        target_predict: [B * n] the target's most likely token after each row.
    """
    wanted = target_predict.view(-1)
    for request in range(candidates.shape[0]):
        node, row = 0, int(retrive_index[request, 0])
        accept_index[request, 0] = row
        count = 0
        while count + 1 < accept_index.shape[1]:
            child = int(retrive_next_token[request, node])
            while child != -1 and int(candidates[request, child]) != int(wanted[row]):
                child = int(retrive_next_sibling[request, child])
            if child == -1:
                break
            predicts[row] = wanted[row].to(predicts.dtype)
            node, row, count = child, int(retrive_index[request, child]), count + 1
            accept_index[request, count] = row
        predicts[row] = wanted[row].to(predicts.dtype)
        accept_token_num[request] = count


def fill_bonus_tokens_cpu(
    accepted_tokens: Tensor, num_tokens: Tensor, bonus_tokens: Tensor, width: int
) -> None:
    """Write the last of every request's accepted tokens, of which it has `width` at most."""
    last = torch.arange(len(num_tokens)) * width + num_tokens.long() - 1
    bonus_tokens.copy_(accepted_tokens.view(-1)[last].to(bonus_tokens.dtype))


def rotate_input_ids_cpu(
    input_ids: Tensor,
    starts: Tensor,
    lengths: Tensor,
    next_tokens: Tensor,
    last_rows: Tensor | None = None,
) -> None:
    """Shift every request's tokens by one, since a drafter reads the token after each row."""
    for request, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        if length <= 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        last = start + length - 1 if last_rows is None else int(last_rows[request])
        input_ids[last] = next_tokens.view(-1)[request]


def _parents(groups: list[int], chosen: list[int], topk: int) -> list[int]:
    """Return the parent node of each node; the root's own is itself."""
    parent = [0]
    for candidate in chosen:
        group = candidate // topk
        parent.append(0 if group == 0 else chosen.index(groups[group]) + 1)
    return parent


def _path_to_root(node: int, parent: list[int]) -> list[int]:
    path = [node]
    while path[-1] != 0:
        path.append(parent[path[-1]])
    return path
