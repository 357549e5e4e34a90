"""The serving half: drafts for many requests at once.

It computes what `MlpNetwork.forward` computes, with `aurora_core.kernels` instead of torch's
operators. Those give a row the same numbers, to the last bit, whatever other rows are in the batch,
as torch's do not: proposals must not depend on which requests happen to be served together. They
also read bfloat16 weights on CPUs, at half the memory traffic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_core.kernels import argmax_logsumexp, linear, rms_norm, silu_multiply
from aurora_mlp_speculator.network import EPSILON, MlpNetwork


class MlpDrafter(Drafter):
    """Proposes one greedy chain per request."""

    def __init__(
        self,
        network: MlpNetwork,
        *,
        min_confidence: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Copy the weights, for the learner may go on changing them.

        Args:
            network: what was trained.
            min_confidence: probability of a chain below which it is not extended.
            dtype: of the matrices. Activations are float32 on CPU and of this dtype elsewhere.
            device: where to draft.
        """
        self._device = device
        self._activation = torch.float32 if device.type == "cpu" else dtype
        self._layers = [
            weight.detach().to(device, dtype, copy=True) for weight in network.layers.parameters()
        ]
        self._head = network.lm_head.weight.detach().to(device, dtype, copy=True)
        self._norm = network.norm.detach().to(device, self._activation, copy=True)
        self._no_weight = torch.ones_like(self._norm)
        # The target's own, which never changes: shared, not copied.
        self._embed_tokens = network.embed_tokens.to(device)
        self._target_ids = network.target_ids.to(device, copy=True)
        self._min_log_prob = math.log(min_confidence) if min_confidence else -math.inf
        self._hidden: dict[str, Tensor] = {}

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Draft from the hidden state before each root; nothing for requests that have none yet."""
        chains: list[list[int]] = [[] for _ in requests]
        log_probs: list[list[float]] = [[] for _ in requests]
        limits = []
        for request in requests:
            rows = request.features["last_hidden_state"]
            if len(rows):
                # Of all rows read so far the newest one is enough. A copy: `rows` is the engine's.
                hidden = rows[-1].to(self._device, self._activation, copy=True)
                self._hidden[request.request_id] = hidden
            known = request.request_id in self._hidden
            limit = min(request.num_speculative_tokens, request.max_nodes, len(self._layers))
            limits.append(limit if known else 0)
        drafting = [index for index, limit in enumerate(limits) if limit > 0]
        if drafting:
            state = torch.stack([self._hidden[requests[index].request_id] for index in drafting])
            token = torch.stack([requests[index].token_ids[-1] for index in drafting])
            token = token.to(self._device)
        depth = 0
        while drafting:
            state, token, log_prob = self._step(depth, state, token)
            depth += 1
            survivors = []
            drafted = zip(drafting, token.tolist(), log_prob.tolist(), strict=True)
            for row, (index, its_token, its_log_prob) in enumerate(drafted):
                chains[index].append(its_token)
                log_probs[index].append(its_log_prob)
                if depth < limits[index] and sum(log_probs[index]) >= self._min_log_prob:
                    survivors.append(row)
            drafting = [drafting[row] for row in survivors]
            state, token = state[survivors], token[survivors]
        return [
            Proposal(token_ids=chain, parents=range(-1, len(chain) - 1), log_probs=its_log_probs)
            for chain, its_log_probs in zip(chains, log_probs, strict=True)
        ]

    def forget(self, request_id: str) -> None:
        """Drop a request's hidden state."""
        self._hidden.pop(request_id, None)

    def _step(self, depth: int, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next state, the best token (a target id) and its log-probability."""
        embedded = self._embed_tokens[token].to(self._activation)
        read = [rms_norm(part, self._no_weight, EPSILON) for part in (state, embedded)]
        state = silu_multiply(linear(torch.cat(read, -1), self._layers[depth]))
        logits = linear(rms_norm(state, self._norm, EPSILON), self._head)
        best, logsumexp = argmax_logsumexp(logits)
        log_prob = logits.gather(1, best[:, None])[:, 0].float() - logsumexp
        return state, self._target_ids[best], log_prob
