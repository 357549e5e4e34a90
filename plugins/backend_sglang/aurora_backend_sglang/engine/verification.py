"""One verification step, read from SGLang's tensors into plain lists."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROOT = -1
"""Parent of a child of the last committed token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The draft tokens of one step, parents before children."""

    tokens: Sequence[int]
    parents: Sequence[int]
    """Index of the parent, `ROOT` for children of the root."""
    depths: Sequence[int]
    """1 for a child of the root."""
    slots: Sequence[int]
    """Where each of them stands among SGLang's nodes, of which the root is number 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStep:
    """What one step of the engine did for one request."""

    root: int
    """Position of the last committed token before the step."""
    draft: Draft
    accepted: Sequence[int]
    """Indices of accepted draft tokens, from the root on."""
    bonus_token: int
    version: int
    """Draft version in force."""
    draft_ms: float
    verify_ms: float
    finished_at: float
    """Unix seconds."""
    batch_size: int
    features: Mapping[str, Tensor]
    """By name, [1 + n, ...]: the root's row, then those of the draft tokens; may be empty."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the step commits."""
        return len(self.accepted) + 1


def without_filler(draft: Draft, used: Container[int]) -> Draft:
    """Return a tree without what SGLang's n-gram drafter fills it up with to its full size.

    It appends children of the root with token 0. One that was accepted by chance stays; a last
    proposal of token 0 that was rejected is taken for filler too.

    Args:
        draft: as `read_draft` returned it.
        used: slots of accepted nodes.
    """
    inner = set(draft.parents)
    kept = list(range(len(draft.tokens)))
    for node in reversed(range(len(draft.tokens))):
        if draft.tokens[node] != 0 or draft.parents[node] != ROOT or node in inner:
            break
        if draft.slots[node] not in used:
            kept.remove(node)
    # Parents stand before what is left out or at the root, so that their indices stay.
    return Draft(
        tokens=[draft.tokens[node] for node in kept],
        parents=[draft.parents[node] for node in kept],
        depths=[draft.depths[node] for node in kept],
        slots=[draft.slots[node] for node in kept],
    )


def read_draft(
    tokens: Sequence[int], first_child: Sequence[int], next_sibling: Sequence[int]
) -> Draft:
    """Return the tree that SGLang wrote as links; nodes that no link leads to are padding.

    Args:
        tokens: of all nodes; number 0 is the root.
        first_child: of each node, -1 for none.
        next_sibling: of each node, -1 for none.
    """
    parent_of = {0: 0}
    pending = [0]
    while pending:
        node = pending.pop()
        child = first_child[node]
        while child != -1 and child not in parent_of:
            parent_of[child] = node
            pending.append(child)
            child = next_sibling[child]
    # SGLang numbers parents before children.
    slots = sorted(parent_of.keys() - {0})
    index = {0: ROOT} | {slot: number for number, slot in enumerate(slots)}
    parents = [index[parent_of[slot]] for slot in slots]
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return Draft(
        tokens=[tokens[slot] for slot in slots], parents=parents, depths=depths, slots=slots
    )
