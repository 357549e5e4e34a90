"""A toy that drafts trees, and one whose branches leak into each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aurora_core.interfaces import DraftRequest, Proposal
from aurora_core.testing.toy_network import ToyDrafter
from tests.conformance.broken_speculators import BrokenDrafterSpeculator


class TreeToyDrafter(ToyDrafter):
    """Extends every node by its two best tokens, breadth first, as far as the budget goes."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._grow(request) for request in requests]

    @torch.no_grad()
    def _grow(self, request: DraftRequest) -> Proposal:
        rows = request.features["last_hidden_state"]
        if len(rows):
            self._states[request.request_id] = rows[-1:].to(self._dtype)
        state = self._states.get(request.request_id)
        token_ids: list[int] = []
        parents: list[int] = []
        log_probs: list[float] = []
        if state is None:
            return Proposal(token_ids=[], parents=[], log_probs=[])
        level = [(-1, request.token_ids[-1:], state)]
        self._budget = request.max_nodes
        for _ in range(request.num_speculative_tokens):
            below: list[tuple[int, Tensor, Tensor]] = []
            for parent, token, state_before in level:
                state_after, logits = self._network(self._mixed(state_before, level), token)
                best = logits.float().log_softmax(-1)[0].topk(2)
                for value, draft_id in zip(best.values, best.indices, strict=True):
                    if len(token_ids) == request.max_nodes:
                        break
                    child = self._network.draft_token_ids[draft_id].reshape(1)
                    below.append((len(token_ids), child, state_after))
                    token_ids.append(int(child))
                    parents.append(parent)
                    log_probs.append(float(value))
            level = below
        return Proposal(token_ids=token_ids, parents=parents, log_probs=log_probs)

    def _mixed(self, state: Tensor, level: list[tuple[int, Tensor, Tensor]]) -> Tensor:
        return state


class LeakingTreeDrafter(TreeToyDrafter):
    """A node sees its siblings, as under a mask that is causal but knows no branches."""

    def _mixed(self, state: Tensor, level: list[tuple[int, Tensor, Tensor]]) -> Tensor:
        return torch.stack([other + token for _, token, other in level]).mean(0)


class PaddedTreeDrafter(TreeToyDrafter):
    """Every node sees the empty slots that the budget would still allow."""

    def _mixed(self, state: Tensor, level: list[tuple[int, Tensor, Tensor]]) -> Tensor:
        return state + 0.02 * self._budget


class TreeToy(BrokenDrafterSpeculator):
    """A sound speculator that drafts trees."""

    topologies = frozenset({"tree"})
    drafter_class = TreeToyDrafter


class LeakingTreeToy(TreeToy):
    """Drafts with a leaking mask."""

    drafter_class = LeakingTreeDrafter


class PaddedTreeToy(TreeToy):
    """Drafts with a mask that leaves empty slots in."""

    drafter_class = PaddedTreeDrafter
