"""The nodes that a batch trains, depth by depth: committed chains and the branches beside them.

Shape legend:
    A  anchors    N  rejected nodes    n  rejected nodes of one depth    L  A + n

Every anchor has one committed node at each depth, first and in the order of the anchors; a chain is
a tree whose parent pointers are the identity. Rejected nodes of that depth come after them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_eagle.collate import Batch
from aurora_eagle.model import Eagle3Network
from aurora_eagle.rollout import Kernel, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Nodes of one depth."""

    parent: Tensor
    """int64 [L]. Index of each node's parent among the nodes of the depth before; at depth 0, which
    has none, the index of each anchor."""
    branch: Tensor
    """int64 [n]. Which of the N each node after the first A is."""


def levels(batch: Batch, num_steps: int) -> list[Level]:
    """Return the nodes of each depth from 0, that of the anchors, to `num_steps` - 1."""
    num_anchors = len(batch.anchor_row)
    chain = torch.arange(num_anchors, device=batch.anchor_row.device)
    found = [Level(parent=chain, branch=chain[:0])]
    place = torch.full_like(batch.branch_parent, -1)
    for depth in range(1, num_steps):
        branch = (batch.branch_depth == depth).nonzero().flatten()
        above = batch.branch_parent[branch]
        parent = torch.where(
            above < 0, batch.branch_anchor[branch], place[above.clamp(min=0)] + num_anchors
        )
        place[branch] = torch.arange(len(branch), device=branch.device)
        found.append(Level(parent=torch.cat([chain, parent]), branch=branch))
    return found


def unroll(
    network: Eagle3Network, batch: Batch, tree: list[Level], *, kernel: Kernel | None = None
) -> list[Tensor]:
    """Return the drafter's outputs after its final norm, [L, H] for each depth.

    One pass of the layer for each depth runs over all committed and rejected nodes.
    """
    rollout = Rollout(network, batch, kernel=kernel)
    num_anchors = len(batch.anchor_row)
    outputs = [network.norm(rollout.advance())]
    for before, level in itertools.pairwise(tree):
        tokens = None
        if len(level.branch) or len(before.branch):
            rollout.descend(level.parent)
            tokens = rollout.committed_tokens()
            tokens[num_anchors:] = batch.branch_token[level.branch]
        outputs.append(network.norm(rollout.advance(tokens)))
    return outputs
