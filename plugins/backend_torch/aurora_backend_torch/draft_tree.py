"""The shape of a proposal, and where its rows lie in a request's cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aurora_core.interfaces import Proposal

ROOT = -1
"""The committed token that the drafts hang below, as a parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlaces:
    """Where the rows of one request belong in a pass. Lists of equal length."""

    position: list[int]
    slot: list[int]
    """Cache entry that each row writes."""
    length: list[int]
    """Cache entries that each row sees, its own included."""
    branch: list[list[int]]
    """Entries of each row's branch, its own last; empty for rows that see the cache in order."""

    @classmethod
    def in_order(cls, start: int, count: int) -> RowPlaces:
        """Return the places of `count` rows that follow each other from position `start` on."""
        places = list(range(start, start + count))
        return cls(
            position=places,
            slot=places,
            length=[place + 1 for place in places],
            branch=[[] for _ in places],
        )


class DraftTree:
    """Draft tokens below one root. A chain is the case of one child each."""

    def __init__(self, token_ids: Sequence[int], parents: Sequence[int]) -> None:
        """
        Args:
            token_ids: [n].
            parents: [n] index of an earlier token, or `ROOT`.

        Raises:
            ValueError: a parent does not come before its child.
        """
        if len(parents) != len(token_ids):
            raise ValueError(f"{len(parents)} parents for {len(token_ids)} draft tokens")
        if not all(ROOT <= parent < node for node, parent in enumerate(parents)):
            raise ValueError(f"parents {list(parents)} do not all come before their children")
        self.token_ids, self.parents = list(token_ids), list(parents)
        self.depth: list[int] = []
        """[n]; 1 for a child of the root."""
        for parent in self.parents:
            self.depth.append(1 if parent == ROOT else self.depth[parent] + 1)
        self.max_depth = max(self.depth, default=0)
        self.is_chain = self.max_depth == len(self.token_ids)

    @classmethod
    def of(cls, proposal: Proposal | None) -> DraftTree:
        """Return the tree of a proposal; an empty one for none."""
        return cls(proposal.token_ids, proposal.parents) if proposal else cls((), ())

    def child(self, node: int, token_id: int) -> int | None:
        """Return the first child of a node (or of `ROOT`) that drafts a token, if there is one."""
        for index in range(node + 1, len(self.token_ids)):
            if self.parents[index] == node and self.token_ids[index] == token_id:
                return index
        return None

    def children(self, node: int) -> list[int]:
        """Return the children of a node (or of `ROOT`), in order."""
        return [index for index, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root's child down to a node."""
        path: list[int] = []
        while node != ROOT:
            path.insert(0, node)
            node = self.parents[node]
        return path

    def entry(self, root: int, node: int) -> int:
        """Return the cache entry of a node below a root at position `root`.

        Nodes of a tree lie behind the entries that their branches are laid into for attention.
        """
        return root + 1 + node + (0 if self.is_chain else self.max_depth)

    def places(self, root: int) -> RowPlaces:
        """Return the places of the root's row and of each node's, in order."""
        if self.is_chain:
            return RowPlaces.in_order(root, 1 + len(self.token_ids))
        nodes = range(len(self.token_ids))
        entries = [self.entry(root, node) for node in nodes]
        return RowPlaces(
            position=[root, *(root + depth for depth in self.depth)],
            slot=[root, *entries],
            length=[root + 1, *(root + 1 + depth for depth in self.depth)],
            branch=[[], *([entries[above] for above in self.path(node)] for node in nodes)],
        )
