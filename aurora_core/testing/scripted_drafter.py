"""A drafter that knows the answer and errs on purpose: what it proposes is decided in advance."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from aurora_core.interfaces import Drafter, DraftRequest, Proposal


class ScriptedDrafter(Drafter):
    """Drafts the next tokens of one known sequence, some of them wrongly."""

    def __init__(
        self,
        token_ids: Sequence[int],
        *,
        vocab_size: int,
        right: float = 1.0,
        branching: int = 1,
        seed: int = 0,
    ) -> None:
        """Learn the sequence by heart.

        Args:
            token_ids: prompt and answer.
            right: share of positions that are drafted as they are in the sequence.
            branching: children of every node on the way; a wrong sibling may come first.
            seed: of the errors. They depend on the position too, never on what was asked before.
        """
        self._token_ids, self._vocab_size = list(token_ids), vocab_size
        self._right, self._branching, self._seed = right, branching, seed

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Return a chain, or a tree with siblings along it."""
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> Proposal:
        token_ids: list[int] = []
        parents: list[int] = []
        root = request.start + len(request.token_ids) - 1
        parent = -1
        for position in range(root + 1, root + 1 + request.num_speculative_tokens):
            children = self._children(position)[: request.max_nodes - len(token_ids)]
            if not children:
                break
            first = len(token_ids)
            token_ids += children
            parents += [parent] * len(children)
            known = self._known(position)
            parent = first + (children.index(known) if known in children else 0)
        return Proposal(
            token_ids=token_ids,
            parents=parents,
            log_probs=[-math.log(self._branching + 1)] * len(token_ids),
        )

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""

    def _known(self, position: int) -> int:
        return self._token_ids[position] if position < len(self._token_ids) else 0

    def _children(self, position: int) -> list[int]:
        draws = random.Random(f"{self._seed}/{position}")
        others = [token for token in range(self._vocab_size) if token != self._known(position)]
        children = draws.sample(others, self._branching)
        if draws.random() < self._right:
            children[draws.randrange(self._branching)] = self._known(position)
        return children
