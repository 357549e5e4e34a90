"""Chains, for many requests at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aurora_core.interfaces import DraftRequest, Proposal
from aurora_eagle.draft_cache import Cache
from aurora_eagle.draft_sampling import DraftSampling
from aurora_eagle.draft_start import Start
from aurora_eagle.serving_network import Places, ServingNetwork


def draft_chains(
    network: ServingNetwork,
    start: Start,
    caches: Sequence[Cache],
    requests: Sequence[DraftRequest],
    *,
    min_log_prob: float,
    least: float,
) -> list[Proposal]:
    """Return the chain of best, or sampled, tokens that follows each start.

    Args:
        network: is stepped once per depth, on all chains that still grow.
        start: where to begin.
        caches: of the call; the rows behind the target's are overwritten.
        requests: one per start.
        min_log_prob: a chain is not extended beyond a token where its own log-probability is less.
        least: a chain ends before a token with which its log-probability would be less; its first
            token always stays. Sampled tokens stay too: what is left of chance after leaving out
            what was unlikely would not be the distribution that they were drawn from.
    """
    tokens: list[list[int]] = [[] for _ in start.limit]
    log_probs: list[list[float]] = [[] for _ in start.limit]
    limit = [min(pair) for pair in zip(start.limit, start.max_nodes, strict=True)]
    growing = list(range(len(limit)))
    places, hidden = start.places, start.hidden
    of_chain = torch.zeros(len(limit), device=network.device)
    sampling = DraftSampling(network, requests)
    depth = 0
    while growing:
        token, log_prob = sampling.choose(hidden, growing, depth)
        of_chain = of_chain + log_prob
        depth += 1
        survivors = []
        rows = zip(growing, token.tolist(), log_prob.tolist(), of_chain.tolist(), strict=True)
        for row, (index, drafted, its_log_prob, so_far) in enumerate(rows):
            if so_far < least and depth > 1 and requests[index].sampling is None:
                continue
            tokens[index].append(drafted)
            log_probs[index].append(its_log_prob)
            if depth < limit[index] and so_far >= min_log_prob:
                survivors.append(row)
        if not survivors:
            break
        if len(survivors) < len(growing):
            growing = [growing[row] for row in survivors]
            kept = torch.tensor(survivors, device=network.device)
            token, hidden, of_chain, places = (
                token[kept],
                hidden[kept],
                of_chain[kept],
                places[kept],
            )
        places = Places(places.owner, places.position + 1, places.slot + 1)
        x = network.read(token, hidden)
        hidden = network.step(hidden, x, places, caches, length=places.slot + 1)
    return [
        Proposal(
            token_ids=drafted,
            parents=list(range(-1, len(drafted) - 1)),
            log_probs=their,
            drawn_from=sampling.drawn_from(index),
        )
        for index, (drafted, their) in enumerate(zip(tokens, log_probs, strict=True))
    ]
