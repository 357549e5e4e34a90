"""The serving drafter: takes in what the target has computed, then drafts for many requests."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import torch

from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_eagle.chain_drafting import draft_chains
from aurora_eagle.config import Eagle3Options
from aurora_eagle.draft_cache import Cache, Caches
from aurora_eagle.draft_start import take_in
from aurora_eagle.model import Eagle3Network
from aurora_eagle.serving_network import ServingNetwork
from aurora_eagle.tree_drafting import draft_trees, drafted_rows


class Eagle3Drafter(Drafter):
    """Proposes one greedy chain per request, or one tree if `tree_width` is more than 1.

    Args:
        network: trained weights, copied.
        options: how to draft.
        dtype: of the matrices; activations are float32 on CPU and of this dtype elsewhere.
        device: where to draft.
    """

    def __init__(
        self,
        network: Eagle3Network,
        options: Eagle3Options,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._network = ServingNetwork(network, dtype=dtype, device=device)
        self._caches = Caches(self._network.allocate)
        self._width = options.tree_width
        self._max_nodes = options.tree_nodes if options.tree_width > 1 else sys.maxsize
        self._min_log_prob = _log(options.min_confidence)
        self._least_log_prob = _log(options.min_node_confidence)

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Take in the new rows and draft for each request.

        A path ends at `num_speculative_tokens`, at the last position that the model was made for,
        after the token where its probability fell below `min_confidence`, or before the one where
        it fell below `min_node_confidence`. A request without new rows gets no draft. Chains are
        sampled where the request allows it; trees never are.
        """
        caches = [self._open(request) for request in requests]
        proposals = [Proposal(token_ids=[], parents=[], log_probs=[]) for _ in requests]
        start = take_in(self._network, requests, caches, max_nodes=self._max_nodes)
        if start is None:
            return proposals
        if self._width > 1:
            drafts = draft_trees(
                self._network,
                start,
                caches,
                width=self._width,
                min_log_prob=self._min_log_prob,
                least=self._least_log_prob,
            )
        else:
            drafts = draft_chains(
                self._network,
                start,
                caches,
                [requests[index] for index in start.request],
                min_log_prob=self._min_log_prob,
                least=self._least_log_prob,
            )
        for index, draft in zip(start.request, drafts, strict=True):
            proposals[index] = draft
        return proposals

    def forget(self, request_id: str) -> None:
        """Drop a request's cache."""
        self._caches.forget(request_id)

    def _open(self, request: DraftRequest) -> Cache:
        """Return the request's cache with room for all that this call will store."""
        depth = request.num_speculative_tokens
        self._network.cover(request.start + len(request.token_ids) - 1 + depth)
        num_drafted = drafted_rows(depth, self._width) if self._width > 1 else depth
        return self._caches.open(request, num_drafted)


def _log(probability: float) -> float:
    return math.log(probability) if probability else -math.inf
