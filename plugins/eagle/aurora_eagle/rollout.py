"""Drafting as training sees it: every anchor of a batch unrolled at once.

Shape legend:
    B  traces          C  context rows            S  context rows of the longest trace
    A  anchors         Z  anchors of one trace    K  steps so far, this one included
    H  hidden size     N  query heads             M  key-value heads, G = N / M
    E  head dimension

This is EAGLE-3's training-time test. An anchor at position t starts from the target's features of t
and the embedding of token t + 1, as the serving drafter does. At step k it reads its own output of
the step before and the embedding of token t + 1 + k, at rotary position t + k, and attends to
    - the context rows of its trace up to t, whose keys come from the target's features, and
    - the rows of its own chain, one per step.
Tokens stay those that were committed; a chain that had drafted them would have computed the same.

Only anchors pass through attention, feed-forward layer and head; other rows give keys and values.
A tree instead of chains would gather the chain's keys by each node's parent.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from aurora_eagle.collate import Batch
from aurora_eagle.model import Eagle3Network


class Rollout:
    """Unrolls the drafter from the anchors of a batch, one step with each call of `advance`."""

    def __init__(self, network: Eagle3Network, batch: Batch) -> None:
        """Encode the context."""
        self._network = network
        self._token_ids = batch.token_ids
        self.trace = batch.row_trace[batch.anchor_row]
        """int64 [A]. Trace of each anchor."""
        self.position = batch.row_position[batch.anchor_row]
        """int64 [A]. Position of each anchor."""
        self.num_steps = 0
        """Steps taken so far."""
        dtype = network.fc.weight.dtype
        hidden_CH = network.fc(batch.aux_hidden_states.to(dtype))
        next_tokens = batch.token_ids[batch.row_trace, batch.row_position + 1]
        x_C2H = network.attention_input(next_tokens, hidden_CH)
        keys_CME, values_CME = network.keys_values(x_C2H, batch.row_position)
        self._hidden_AH: Tensor = hidden_CH[batch.anchor_row]
        self._x_A2H = x_C2H[batch.anchor_row]

        slots_BS, filled_BS = _slots(batch.row_trace, len(batch.token_ids))
        self._context_keys = keys_CME[slots_BS].permute(0, 2, 3, 1)
        self._context_values = values_CME[slots_BS].transpose(1, 2)
        # An empty slot lies beyond every anchor.
        self._context_positions_BS = batch.row_position[slots_BS].masked_fill(
            ~filled_BS, batch.token_ids.shape[1]
        )
        self._chain_keys: list[Tensor] = []
        self._chain_values: list[Tensor] = []
        self._lay_out_anchors()

    def advance(self) -> Tensor:
        """Take the next step with the anchors left and return their outputs, [A, H].

        An output's logits are those of token `position + 2 + k`, k being the steps taken before.
        """
        network, step = self._network, self.num_steps
        self.num_steps += 1
        rotary_A = self.position + step
        if step:
            # Beyond the end of a trace nothing is supervised; any token does there.
            column = (self.position + 1 + step).clamp(max=self._token_ids.shape[1] - 1)
            self._x_A2H = network.attention_input(
                self._token_ids[self.trace, column], self._hidden_AH
            )
            keys_AME, values_AME = network.keys_values(self._x_A2H, rotary_A)
            self._chain_keys.append(keys_AME)
            self._chain_values.append(values_AME)
        attended_AI = self._attend(network.queries(self._x_A2H, rotary_A))
        self._hidden_AH = network.finish(self._hidden_AH, attended_AI)
        return self._hidden_AH

    def keep(self, mask_A: Tensor) -> None:
        """Go on with some anchors only."""
        self.trace, self.position = self.trace[mask_A], self.position[mask_A]
        self._hidden_AH, self._x_A2H = self._hidden_AH[mask_A], self._x_A2H[mask_A]
        self._chain_keys = [keys[mask_A] for keys in self._chain_keys]
        self._chain_values = [values[mask_A] for values in self._chain_values]
        self._lay_out_anchors()

    def _lay_out_anchors(self) -> None:
        """Arrange anchors by trace, so that each trace's attend to its context together."""
        self._anchors_BZ, present_BZ = _slots(self.trace, len(self._token_ids))
        self._unpadded = present_BZ.flatten().nonzero().flatten()
        positions_BZ = self.position[self._anchors_BZ]
        self._hidden_context_BZS = self._context_positions_BS[:, None] > positions_BZ[:, :, None]

    def _attend(self, queries_ANE: Tensor) -> Tensor:
        """Return [A, N * E]: one softmax over a row's context and its own chain."""
        shape = self._network.shape
        num_groups = shape.num_heads // shape.num_kv_heads
        longest = self._anchors_BZ.shape[1]
        queries_AMGE = queries_ANE.reshape(-1, shape.num_kv_heads, num_groups, shape.head_dim)
        queries_AMGE = queries_AMGE * shape.head_dim**-0.5
        # [B, M, G * Z, E]: the heads of a group share their keys.
        queries = queries_AMGE[self._anchors_BZ].permute(0, 2, 3, 1, 4).flatten(2, 3)
        grouped = (*queries.shape[:2], num_groups, longest, -1)
        scores = (queries @ self._context_keys).reshape(grouped).float()
        scores = scores.masked_fill(self._hidden_context_BZS[:, None, None], float("-inf"))
        num_context = scores.shape[-1]
        if self._chain_keys:
            keys_AKME = torch.stack(self._chain_keys, 1)
            chain_AKMG = torch.einsum("amge,akme->akmg", queries_AMGE, keys_AKME).float()
            chain = chain_AKMG[self._anchors_BZ].permute(0, 3, 4, 1, 2)
            scores = torch.cat((scores, chain), -1)
        weights = functional.softmax(scores, -1).to(queries.dtype)
        context_weights = weights[..., :num_context].flatten(2, 3)
        attended = (context_weights @ self._context_values).reshape(grouped)
        attended_ANE = self._unpad(attended.permute(0, 3, 1, 2, 4))
        if self._chain_keys:
            chain_weights = self._unpad(weights[..., num_context:].permute(0, 3, 1, 2, 4))
            values_AKME = torch.stack(self._chain_values, 1)
            attended_ANE = attended_ANE + torch.einsum(
                "amgk,akme->amge", chain_weights, values_AKME
            )
        return attended_ANE.flatten(1)

    def _unpad(self, padded_BZ: Tensor) -> Tensor:
        """Return rows [A, ...] of [B, Z, ...], in the order of the anchors."""
        return padded_BZ.flatten(0, 1)[self._unpadded]


def _slots(trace: Tensor, num_traces: int) -> tuple[Tensor, Tensor]:
    """Arrange flat rows by trace.

    Args:
        trace: int64 [R], non-decreasing.
        num_traces: B.

    Returns:
        (int64 [B, S] row in each slot, arbitrary in empty ones; bool [B, S] whether it is filled)
    """
    counts = torch.bincount(trace, minlength=num_traces)
    longest = int(counts.max()) if len(counts) else 0
    slot = torch.arange(longest, device=trace.device)
    filled = slot[None] < counts[:, None]
    starts = counts.cumsum(0) - counts
    return (starts[:, None] + slot[None]).masked_fill(~filled, 0), filled
