"""The draft vocabulary: which target tokens a drafter can propose, and under which index.

A drafter's vocabulary never changes after it was chosen: every row of its head stands for one
target token, and engines read the map once.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_offsets(target_ids: Tensor) -> Tensor:
    """Return d2t, int64 [D]: what to add to a draft index to get its target id."""
    return target_ids - torch.arange(len(target_ids), device=target_ids.device)


def to_membership(target_ids: Tensor, vocab_size: int) -> Tensor:
    """Return t2d, bool [V]: whether a target id can be drafted."""
    membership = torch.zeros(vocab_size, dtype=torch.bool, device=target_ids.device)
    membership[target_ids] = True
    return membership


def find_fault(offsets: Tensor, membership: Tensor) -> str | None:
    """Return what is wrong with a stored map in words, or None.

    Args:
        offsets: d2t, int64 [D].
        membership: t2d, bool [V].
    """
    target_ids = offsets + torch.arange(len(offsets))
    if not len(offsets):
        return "d2t is empty"
    if int(target_ids.min()) < 0 or int(target_ids.max()) >= len(membership):
        return f"d2t leads to ids outside 0 to {len(membership) - 1}"
    if bool((target_ids[1:] <= target_ids[:-1]).any()):
        return "the target ids of d2t do not increase (it holds offsets, not ids)"
    if not bool(membership[target_ids].all()) or int(membership.sum()) != len(offsets):
        return "t2d does not mark exactly the ids of d2t"
    return None


def draft_indices(offsets: Tensor, vocab_size: int) -> Tensor:
    """Return int64 [V]: a target id's draft index, or -1 where it cannot be drafted."""
    indices = torch.full((vocab_size,), -1, dtype=torch.int64, device=offsets.device)
    positions = torch.arange(len(offsets), device=offsets.device)
    indices[offsets + positions] = positions
    return indices
