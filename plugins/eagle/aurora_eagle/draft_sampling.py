"""Drafts that are sampled rather than the likeliest, for requests that allow it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aurora_core.interfaces import DraftDistributions, DraftRequest
from aurora_core.kernels import argmax_logsumexp
from aurora_core.sampling import dense_probs, pick
from aurora_eagle.serving_network import ServingNetwork


class DraftSampling:
    """Chooses the next token of chains, and keeps what sampled ones were drawn from."""

    def __init__(self, network: ServingNetwork, requests: Sequence[DraftRequest]) -> None:
        """
        Args:
            network: whose distributions are drawn from, processed as the request's target is.
            requests: one per chain.
        """
        self._network, self._requests = network, requests
        self._drawn_from: list[list[Tensor]] = [[] for _ in requests]

    def choose(self, hidden: Tensor, chains: Sequence[int], depth: int) -> tuple[Tensor, Tensor]:
        """Return the next token of each chain and its log-probability.

        Args:
            hidden: [R, H]
            chains: [R] index of each row's chain.
            depth: tokens that the chains have already.

        Returns:
            (target ids int64 [R], float32 [R] under the untempered drafter)
        """
        logits = self._network.logits(hidden)
        best, logsumexp = argmax_logsumexp(logits)
        for row, chain in enumerate(chains):
            request = self._requests[chain]
            if request.sampling is not None:
                probs = dense_probs(logits[row], request.sampling)
                best[row] = pick(probs, request.uniforms[depth])
                self._drawn_from[chain].append(probs.float())
        log_prob = logits.gather(1, best[:, None])[:, 0].float() - logsumexp
        return self._network.target_ids[best], log_prob

    def drawn_from(self, chain: int) -> DraftDistributions | None:
        """Return what a chain's tokens were drawn from; None where they are the likeliest."""
        if not self._drawn_from[chain]:
            return None
        return DraftDistributions(
            token_ids=self._network.target_ids, probs=torch.stack(self._drawn_from[chain])
        )
