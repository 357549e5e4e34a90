"""Takes in what the target has computed and says where drafts start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_core.interfaces import DraftRequest
from aurora_eagle.draft_cache import Cache
from aurora_eagle.serving_network import Places, ServingNetwork


@dataclass(frozen=True, slots=True)
class Start:
    """The last new row of every request that drafts. Leading dimension n."""

    request: list[int]
    """Index into the requests of the call."""
    limit: list[int]
    """Depth of each draft at most, at least 1."""
    max_nodes: list[int]
    """Nodes of each draft at most, at least 1."""
    places: Places
    hidden: Tensor
    """[n, H]. Output of the layer."""


def take_in(
    network: ServingNetwork,
    requests: Sequence[DraftRequest],
    caches: Sequence[Cache],
    *,
    max_nodes: int,
) -> Start | None:
    """Store keys and values of the new rows; return where to draft from, None for nowhere.

    Args:
        network: is stepped once, on the last new row of each request that drafts.
        requests: of the call.
        caches: of these; their lengths grow by the new rows.
        max_nodes: bound on the nodes of a draft besides that of its request.
    """
    owner: list[int] = []
    position: list[int] = []
    slot: list[int] = []
    starting: list[int] = []
    drafting: list[int] = []
    limits: list[int] = []
    for index, (request, cache) in enumerate(zip(requests, caches, strict=True)):
        num_new = len(request.token_ids) - 1
        owner += [index] * num_new
        position += range(request.start, request.start + num_new)
        slot += range(cache.length, cache.length + num_new)
        cache.length += num_new
        room = network.shape.max_position_embeddings - (request.start + num_new)
        limit = min(request.num_speculative_tokens, room)
        if num_new and limit > 0 and request.max_nodes > 0:
            starting.append(len(owner) - 1)
            drafting.append(index)
            limits.append(limit)
    if not owner:
        return None
    hidden = network.fuse(
        torch.cat([request.features["aux_hidden_states"] for request in requests])
    )
    token_ids = torch.cat([request.token_ids[1:] for request in requests])
    x = network.read(token_ids.to(network.device), hidden)
    places = Places(*torch.tensor([owner, position, slot], device=network.device))
    others = sorted(set(range(len(owner))) - set(starting))
    if others:
        rows = torch.tensor(others, device=network.device)
        network.store(x[rows], places[rows], caches)
    if not drafting:
        return None
    rows = torch.tensor(starting, device=network.device)
    places = places[rows]
    return Start(
        request=drafting,
        limit=limits,
        max_nodes=[min(requests[index].max_nodes, max_nodes) for index in drafting],
        places=places,
        hidden=network.step(hidden[rows], x[rows], places, caches, length=places.slot + 1),
    )
