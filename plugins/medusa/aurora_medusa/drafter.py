"""The serving drafter: all heads on one row of each request, for many requests at once.

Shape legend:
    n  requests    K  heads    H  hidden size    D  draft vocabulary    J  ranks

The newest row that the target has computed stands before the root: the root was chosen from it and
not yet read. Head k of this row predicts the token k + 1 after the root. Earlier rows do not
matter, so there is nothing to keep between two steps, and nothing is missing after a swap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_core.kernels import argmax_logsumexp, linear, silu_multiply
from aurora_core.records import Trace
from aurora_medusa.candidate_tree import Tree, chain, cut_tree, default_accuracy, grow_tree
from aurora_medusa.config import NUM_RANKS, MedusaOptions
from aurora_medusa.model import MedusaNetwork
from aurora_medusa.rank_accuracy import RankAccuracy

OBSERVED_ROWS = 4
"""Rows of a finished request on which the heads are judged; each costs about as much as a draft."""


class MedusaDrafter(Drafter):
    """Proposes a chain or a tree per request."""

    def __init__(
        self,
        network: MedusaNetwork,
        *,
        options: MedusaOptions,
        accuracy: RankAccuracy,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Copy the weights.

        Args:
            network: trained weights; may be changed afterwards.
            options: shape and limits of proposals.
            accuracy: what is known of the heads; `observe` adds to it if the tree is adaptive.
            dtype: of the matrices; activations are float32 on CPU and of this dtype elsewhere.
            device: where to draft.
        """
        self._device, self._options = device, options
        self._num_heads = network.shape.num_heads
        self._activation = torch.float32 if device.type == "cpu" else dtype

        def matrix(part: Tensor) -> Tensor:
            return part.detach().to(device, dtype, copy=True).contiguous()

        self._blocks = [
            [
                (
                    matrix(layer.get_parameter("weight")),
                    layer.get_parameter("bias").detach().to(device, self._activation, copy=True),
                )
                for layer in block.get_submodule("layers").children()
            ]
            for block in network.blocks
        ]
        if network.shape.own_heads:
            self._heads = [matrix(head) for head in network.output_heads]
        else:
            # The target's own, which never changes: shared, not copied, where its dtype is right.
            self._heads = [network.draft_head.to(device, dtype)]
        self._target_ids = network.token_map.to(device)
        self._accuracy = accuracy
        self._tree = self._grow()

    @property
    def tree(self) -> Tree:
        """The tree of which each proposal is a part; it changes with what is observed."""
        return self._tree

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Draft a chain or a tree for each request; one without new rows gets no draft."""
        shapes = [self._shape(request) for request in requests]
        drafting = [index for index, shape in enumerate(shapes) if shape]
        proposals = [Proposal(token_ids=(), parents=(), log_probs=()) for _ in requests]
        if not drafting:
            return proposals
        hidden = torch.stack(
            [requests[index].features["last_hidden_state"][-1] for index in drafting]
        )
        nodes = [node for index in drafting for node in shapes[index]]
        tokens, log_probs = self._best(
            hidden,
            num_heads=max(node.depth for node in nodes),
            num_ranks=1 + max(node.rank for node in nodes),
        )
        for row, index in enumerate(drafting):
            proposals[index] = self._proposal(shapes[index], tokens[row], log_probs[row])
        return proposals

    def forget(self, request_id: str) -> None:
        """Do nothing: no request has a state."""

    @torch.inference_mode()
    def observe(self, trace: Trace) -> None:
        """Judge the heads on some rows of a finished request and grow the tree anew.

        Which drafter served the request does not matter: these heads are asked what they would have
        proposed. Does nothing unless the tree is adaptive.
        """
        hidden = trace.features.get("last_hidden_state")
        if self._options.tree != "adaptive" or hidden is None:
            return
        position, num_tokens = trace.rows.position, len(trace.token_ids)
        usable = (position >= trace.prompt_len - 1) & (position < num_tokens - 2)
        usable &= torch.isfinite(hidden).all(-1)
        rows = usable.nonzero().flatten()
        if not len(rows):
            return
        if len(rows) > OBSERVED_ROWS:
            rows = rows[torch.linspace(0, len(rows) - 1, OBSERVED_ROWS).round().long()]
        tokens, _ = self._best(hidden[rows], num_heads=self._num_heads, num_ranks=NUM_RANKS)
        hits, seen = [], []
        for head in range(self._num_heads):
            predicted = position[rows] + 2 + head
            judged = predicted < num_tokens
            committed = trace.token_ids[predicted[judged]].tolist()
            best = [
                ranks[head]
                for ranks, is_judged in zip(tokens, judged.tolist(), strict=True)
                if is_judged
            ]
            seen.append(len(committed))
            hits.append(
                [
                    sum(ranks[rank] == token for ranks, token in zip(best, committed, strict=True))
                    for rank in range(len(best[0]) if best else 0)
                ]
            )
        self._accuracy.add(hits, seen)
        self._tree = self._grow()

    def _grow(self) -> Tree:
        if self._options.tree == "chain":
            return chain(self._num_heads)
        is_static = self._options.tree == "static"
        known = default_accuracy(self._num_heads) if is_static else self._accuracy.estimate()
        num_ranks = min(NUM_RANKS, len(self._target_ids))
        return grow_tree([ranks[:num_ranks] for ranks in known])

    def _shape(self, request: DraftRequest) -> Tree:
        """Return the part of the tree that a request may have."""
        if len(request.token_ids) < 2:
            return ()
        max_nodes = request.max_nodes
        if self._options.tree != "chain":
            max_nodes = min(max_nodes, self._options.tree_nodes)
        return cut_tree(
            self._tree,
            max_depth=request.num_speculative_tokens,
            max_nodes=max_nodes,
            min_reach=self._options.min_reach if self._options.tree == "adaptive" else 0.0,
        )

    def _proposal(
        self, shape: Tree, tokens: list[list[int]], log_probs: list[list[float]]
    ) -> Proposal:
        """Fill a shape with one request's tokens, [K][J] each."""
        if self._options.tree == "chain":
            # Only now are the chances known by which a chain ends.
            reach = 0.0
            for length, node in enumerate(shape):
                reach += log_probs[node.depth - 1][0]
                if length and math.exp(reach) < self._options.min_reach:
                    shape = shape[:length]
                    break
        return Proposal(
            token_ids=[tokens[node.depth - 1][node.rank] for node in shape],
            parents=[node.parent for node in shape],
            log_probs=[log_probs[node.depth - 1][node.rank] for node in shape],
        )

    def _best(
        self, hidden: Tensor, *, num_heads: int, num_ranks: int
    ) -> tuple[list[list[list[int]]], list[list[list[float]]]]:
        """Return each head's best tokens and their log-probabilities, both [n][K][J].

        Args:
            hidden: [n, H], as captured.
            num_heads: K, the first heads.
            num_ranks: J; fewer where the draft vocabulary is smaller.
        """
        x = hidden.to(self._device, self._activation)
        read = [self._run_block(head, x) for head in range(num_heads)]
        if len(self._heads) == 1:
            # One pass over the shared matrix serves all heads.
            logits = linear(torch.cat(read), self._heads[0])
        else:
            pairs = zip(read, self._heads, strict=False)
            logits = torch.cat([linear(rows, matrix) for rows, matrix in pairs])
        best, logsumexp = argmax_logsumexp(logits)
        ids, log_probs = [], []
        for rank in range(min(num_ranks, len(self._target_ids))):
            if rank:
                best = logits.argmax(-1)
            ids.append(self._target_ids[best])
            log_probs.append(logits.gather(1, best[:, None])[:, 0].float() - logsumexp)
            logits.scatter_(1, best[:, None], -math.inf)
        split = (num_heads, len(hidden), -1)
        return (
            torch.stack(ids, -1).reshape(split).transpose(0, 1).tolist(),
            torch.stack(log_probs, -1).reshape(split).transpose(0, 1).tolist(),
        )

    def _run_block(self, head: int, x: Tensor) -> Tensor:
        """Return what the head's output matrix reads, [n, H]."""
        for weight, bias in self._blocks[head]:
            gate = linear(x, weight, bias)
            # The kernel, unlike torch's own SiLU, computes a row the same in every batch.
            x = x + silu_multiply(torch.cat((gate, torch.ones_like(gate)), -1))
        return x
