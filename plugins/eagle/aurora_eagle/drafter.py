"""The serving drafter: steps the network token by token, for many requests at once.

Shape legend:
    n  requests    M  new rows of all requests    K  num_speculative_tokens    H  hidden size

A request's cache holds keys and values of rows that the target has computed. Rows that the drafter
feeds itself while it drafts lie behind them and are overwritten by the target's next time, whether
their tokens were accepted or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_core.kernels import (
    argmax_logsumexp,
    attend,
    linear,
    rms_norm,
    rotate_and_store,
    silu_multiply,
)
from aurora_eagle.model import Eagle3Network, rotary_table

MIN_CAPACITY = 256
"""Rows that a new cache has room for; it doubles when it is full."""


@dataclass(slots=True)
class _Cache:
    """Keys and values of one request, [capacity, kv_heads, head_dim] each."""

    keys: Tensor
    values: Tensor
    base: int
    """Position of the first row."""
    length: int
    """Rows computed by the target."""


@dataclass(slots=True)
class _Chains:
    """Requests that still draft. Tensors have leading dimension n."""

    request: list[int]
    """Index into the requests of the call."""
    limit: list[int]
    """Draft tokens that each may propose."""
    owner: Tensor
    """int64. Index into the caches of the call."""
    position: Tensor
    """int64. Position of the row last fed."""
    slot: Tensor
    """int64. Its place in the cache."""
    hidden: Tensor
    """[n, H]. Output of the step before."""
    log_prob: Tensor
    """float32. Of the chain so far."""

    def keep(self, survivors: list[int]) -> None:
        self.request = [self.request[index] for index in survivors]
        self.limit = [self.limit[index] for index in survivors]
        index = torch.tensor(survivors, device=self.hidden.device)
        self.owner, self.position = self.owner[index], self.position[index]
        self.slot, self.hidden = self.slot[index], self.hidden[index]
        self.log_prob = self.log_prob[index]


class Eagle3Drafter(Drafter):
    """Proposes one greedy chain per request."""

    def __init__(
        self,
        network: Eagle3Network,
        *,
        min_confidence: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Copy the weights.

        Args:
            network: trained weights; may be changed afterwards.
            min_confidence: chain probability below which a chain is not extended.
            dtype: of the matrices; activations are float32 on CPU and of this dtype elsewhere.
            device: where to draft.
        """
        self._shape = network.shape
        self._device = device
        self._min_log_prob = math.log(min_confidence) if min_confidence else -math.inf
        self._activation = torch.float32 if device.type == "cpu" else dtype

        def matrix(*parts: Tensor) -> Tensor:
            return torch.cat([part.detach() for part in parts]).to(device, dtype).contiguous()

        def vector(part: Tensor) -> Tensor:
            return part.detach().to(device, self._activation, copy=True)

        middle, attention = network.midlayer, network.midlayer.self_attn
        self._fc = matrix(network.fc.weight)
        self._qkv = matrix(
            attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight
        )
        self._key_value = self._qkv[self._shape.num_heads * self._shape.head_dim :]
        self._output = matrix(attention.o_proj.weight)
        self._gate_up = matrix(middle.mlp.gate_proj.weight, middle.mlp.up_proj.weight)
        self._down = matrix(middle.mlp.down_proj.weight)
        self._head = matrix(network.lm_head.weight)
        self._input_norm = vector(middle.input_layernorm.weight)
        self._hidden_norm = vector(middle.hidden_norm.weight)
        self._post_norm = vector(middle.post_attention_layernorm.weight)
        self._norm = vector(network.norm.weight)
        # The target's own, which never changes: shared, not copied.
        self._embed_tokens = network.embed_tokens.to(device)
        self._target_ids = network.target_ids.to(device)
        self._cosine, self._sine = self._rotary(1024)
        self._caches: dict[str, _Cache] = {}

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Take in the new rows and draft a chain for each request.

        A chain ends at `num_speculative_tokens`, at the last position that the model was made for,
        or after the token where its probability fell below `min_confidence`. A request without new
        rows gets no draft.
        """
        tokens: list[list[int]] = [[] for _ in requests]
        log_probs: list[list[float]] = [[] for _ in requests]
        caches = [self._cache(request) for request in requests]
        chains = self._take_in(requests, caches)
        keys, values = [cache.keys for cache in caches], [cache.values for cache in caches]
        depth = 0
        while chains is not None:
            token, log_prob = self._choose(chains.hidden)
            chains.log_prob = chains.log_prob + log_prob
            depth += 1
            survivors = []
            rows = zip(
                chains.request,
                chains.limit,
                token.tolist(),
                log_prob.tolist(),
                chains.log_prob.tolist(),
                strict=True,
            )
            for index, (request, limit, drafted, its_log_prob, of_chain) in enumerate(rows):
                tokens[request].append(drafted)
                log_probs[request].append(its_log_prob)
                if depth < limit and of_chain >= self._min_log_prob:
                    survivors.append(index)
            if not survivors:
                break
            if len(survivors) < len(chains.request):
                token = token[torch.tensor(survivors, device=self._device)]
                chains.keep(survivors)
            chains.position, chains.slot = chains.position + 1, chains.slot + 1
            self._feed(chains, self._input(token, chains.hidden), keys, values)
        return [
            Proposal(token_ids=drafted, parents=list(range(-1, len(drafted) - 1)), log_probs=their)
            for drafted, their in zip(tokens, log_probs, strict=True)
        ]

    def forget(self, request_id: str) -> None:
        """Drop a request's cache."""
        self._caches.pop(request_id, None)

    def _cache(self, request: DraftRequest) -> _Cache:
        """Return the request's cache, with rows [.., start) in it and room for more."""
        num_new = len(request.token_ids) - 1
        cache = self._caches.get(request.request_id)
        if cache is None or not cache.base <= request.start <= cache.base + cache.length:
            # Unknown, or out of step with the target: begin with the window given.
            cache = _Cache(*self._allocate(MIN_CAPACITY), request.start, 0)
            self._caches[request.request_id] = cache
        cache.length = request.start - cache.base
        wanted = cache.length + num_new + request.num_speculative_tokens
        if wanted > len(cache.keys):
            keys, values = self._allocate(max(wanted, 2 * len(cache.keys)))
            keys[: cache.length] = cache.keys[: cache.length]
            values[: cache.length] = cache.values[: cache.length]
            cache.keys, cache.values = keys, values
        last = request.start + num_new + request.num_speculative_tokens
        if last > len(self._cosine):
            self._cosine, self._sine = self._rotary(max(last, 2 * len(self._cosine)))
        return cache

    def _take_in(
        self, requests: Sequence[DraftRequest], caches: Sequence[_Cache]
    ) -> _Chains | None:
        """Store keys and values of the new rows; return the chains that start from them."""
        owner: list[int] = []
        position: list[int] = []
        slot: list[int] = []
        starting: list[int] = []
        chains: list[tuple[int, int]] = []
        for index, (request, cache) in enumerate(zip(requests, caches, strict=True)):
            num_new = len(request.token_ids) - 1
            owner += [index] * num_new
            position += range(request.start, request.start + num_new)
            slot += range(cache.length, cache.length + num_new)
            cache.length += num_new
            room = self._shape.max_position_embeddings - (request.start + num_new)
            limit = min(request.num_speculative_tokens, request.max_nodes, room)
            if num_new and limit > 0:
                starting.append(len(owner) - 1)
                chains.append((index, limit))
        if not owner:
            return None
        aux = torch.cat([request.features["aux_hidden_states"] for request in requests])
        hidden = linear(aux.to(self._device, self._activation), self._fc)
        token_ids = torch.cat([request.token_ids[1:] for request in requests])
        x = self._input(token_ids.to(self._device), hidden)
        places = torch.tensor([owner, position, slot], device=self._device)
        keys, values = [cache.keys for cache in caches], [cache.values for cache in caches]
        others = sorted(set(range(len(owner))) - set(starting))
        if others:
            rows = torch.tensor(others, device=self._device)
            theirs = [place[rows] for place in places]
            self._store(linear(x[rows], self._key_value), theirs, keys, values, num_heads=0)
        if not chains:
            return None
        rows = torch.tensor(starting, device=self._device)
        its_owner, its_position, its_slot = (place[rows] for place in places)
        started = _Chains(
            request=[request for request, _ in chains],
            limit=[limit for _, limit in chains],
            owner=its_owner,
            position=its_position,
            slot=its_slot,
            hidden=hidden[rows],
            log_prob=torch.zeros(len(chains), device=self._device),
        )
        self._feed(started, x[rows], keys, values)
        return started

    def _feed(
        self, chains: _Chains, x: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> None:
        """Run the layer on one row per chain; its output becomes `chains.hidden`."""
        places = (chains.owner, chains.position, chains.slot)
        num_heads = self._shape.num_heads
        query = self._store(linear(x, self._qkv), places, keys, values, num_heads=num_heads)
        scale = self._shape.head_dim**-0.5
        mixed = attend(query, keys, values, chains.owner, chains.slot + 1, scale)
        hidden = chains.hidden + linear(mixed, self._output)
        normed = rms_norm(hidden, self._post_norm, self._shape.rms_norm_eps)
        gated = silu_multiply(linear(normed, self._gate_up))
        chains.hidden = hidden + linear(gated, self._down)

    def _choose(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's best token (int64 [n], target ids) and its log-probability."""
        logits = linear(rms_norm(hidden, self._norm, self._shape.rms_norm_eps), self._head)
        best, logsumexp = argmax_logsumexp(logits)
        return self._target_ids[best], logits.gather(1, best[:, None])[:, 0].float() - logsumexp

    def _input(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """Return what the attention's projections read, [R, 2 * H]."""
        embedded = self._embed_tokens[token_ids].to(self._activation)
        epsilon = self._shape.rms_norm_eps
        return torch.cat(
            (
                rms_norm(embedded, self._input_norm, epsilon),
                rms_norm(hidden, self._hidden_norm, epsilon),
            ),
            -1,
        )

    def _store(
        self,
        projected: Tensor,
        places: Sequence[Tensor],
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        *,
        num_heads: int,
    ) -> Tensor:
        """Store keys and values of some rows and return their queries.

        Args:
            projected: queries of `num_heads`, keys and values.
            places: owner, position and slot of each row.
        """
        owner, position, slot = places
        return rotate_and_store(
            projected,
            cosine=self._cosine,
            sine=self._sine,
            position=position,
            owner=owner,
            slot=slot,
            keys=keys,
            values=values,
            num_heads=num_heads,
        )

    def _allocate(self, capacity: int) -> tuple[Tensor, Tensor]:
        size = (capacity, self._shape.num_kv_heads, self._shape.head_dim)
        keys, values = torch.zeros((2, *size), dtype=self._activation, device=self._device).unbind()
        return keys, values

    def _rotary(self, num_positions: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(num_positions, device=self._device)
        cosine, sine = rotary_table(self._shape, positions)
        return cosine.contiguous(), sine.contiguous()
