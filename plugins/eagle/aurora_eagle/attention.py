"""Attention of draft nodes to their trace's context and to their own ancestors.

Shape legend:
    B  traces          S  context rows of the longest trace    L  nodes at this depth
    Z  nodes of one trace at this depth                        P  nodes of one trace at another
    N  query heads     M  key-value heads, G = N / M           E  head dimension

A node sees the context rows of its trace up to the position its draft started from, and of all
nodes only its ancestors and itself: the ancestor closure of the parent pointers.

`attend_plain` gathers each node's own ancestors, so that nothing grows with the square of the
number of nodes. `attend_fused` gives all nodes of a trace to one fused kernel under a boolean mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Keys and values of the committed rows, arranged by trace."""

    keys: Tensor
    """[B, M, S, E]"""
    values: Tensor
    """[B, M, S, E]"""
    hidden: Tensor
    """bool [B, Z, S]. Context rows that each node must not see; empty slots are of no trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Keys and values of the nodes of one depth, and what the attending nodes see of them."""

    keys: Tensor
    """[P', M, E]. P' nodes over all traces."""
    values: Tensor
    """[P', M, E]"""
    trace: Tensor
    """int64 [P']."""
    ancestor: Tensor | None
    """int64 [L]. The node of this depth above each attending node, or itself; None is each itself,
    in the same order."""

    def seen_keys(self) -> Tensor:
        """Return [L, M, E]."""
        return self.keys if self.ancestor is None else self.keys.index_select(0, self.ancestor)

    def seen_values(self) -> Tensor:
        """Return [L, M, E]."""
        return self.values if self.ancestor is None else self.values.index_select(0, self.ancestor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Flat rows arranged by trace."""

    row: Tensor
    """int64 [B, Z]. Row in each slot, arbitrary in empty ones."""
    filled: Tensor
    """bool [B, Z]."""
    of_row: Tensor
    """int64 [L]. Slot of each row, counted over all traces."""

    @classmethod
    def arrange(cls, trace: Tensor, num_traces: int) -> Slots:
        """Arrange rows.

        Args:
            trace: int64 [L]. Trace of each row, in any order.
            num_traces: B.
        """
        counts = torch.bincount(trace, minlength=num_traces)
        longest = int(counts.max()) if len(counts) else 0
        slot = torch.arange(longest, device=trace.device)
        filled = slot[None] < counts[:, None]
        starts = counts.cumsum(0) - counts
        order = trace.argsort(stable=True)
        place = (starts[:, None] + slot[None]).masked_fill(~filled, 0)
        of_row = torch.empty_like(order)
        of_row[order] = filled.flatten().nonzero().flatten()
        return cls(row=order[place] if len(order) else place, filled=filled, of_row=of_row)

    def flatten(self, arranged: Tensor) -> Tensor:
        """Return rows [L, ...] of [B, Z, ...], in the order that was arranged."""
        return arranged.flatten(0, 1)[self.of_row]


def attend_plain(
    queries: Tensor, slots: Slots, context: Context, depths: Sequence[Depth]
) -> Tensor:
    """Return [L, N * E]: one softmax over a node's context and its ancestors.

    Args:
        queries: [L, N, E].
        slots: of the L nodes.
        context: of all traces.
        depths: from the first below the context down to that of the attending nodes.
    """
    num_kv_heads, head_dim = context.keys.shape[1], context.keys.shape[3]
    num_groups, longest = queries.shape[1] // num_kv_heads, slots.row.shape[1]
    queries_LMGE = queries.reshape(-1, num_kv_heads, num_groups, head_dim) * head_dim**-0.5
    # [B, M, G * Z, E]: the heads of a group share their keys.
    arranged = queries_LMGE[slots.row].permute(0, 2, 3, 1, 4).flatten(2, 3)
    grouped = (*arranged.shape[:2], num_groups, longest, -1)
    scores = (arranged @ context.keys.transpose(2, 3)).reshape(grouped).float()
    scores = scores.masked_fill(context.hidden[:, None, None], float("-inf"))
    num_context = scores.shape[-1]
    if depths:
        keys = torch.stack([depth.seen_keys() for depth in depths], 1)
        own_LKMG = torch.einsum("lmge,lkme->lkmg", queries_LMGE, keys).float()
        own = own_LKMG[slots.row].permute(0, 3, 4, 1, 2)
        scores = torch.cat((scores, own), -1)
    weights = functional.softmax(scores, -1).to(queries.dtype)
    context_weights = weights[..., :num_context].flatten(2, 3)
    attended = (context_weights @ context.values).reshape(grouped)
    attended_LMGE = slots.flatten(attended.permute(0, 3, 1, 2, 4))
    if depths:
        own_weights = slots.flatten(weights[..., num_context:].permute(0, 3, 1, 2, 4))
        values = torch.stack([depth.seen_values() for depth in depths], 1)
        attended_LMGE = attended_LMGE + torch.einsum("lmgk,lkme->lmge", own_weights, values)
    return attended_LMGE.flatten(1)


def attend_fused(
    queries: Tensor, slots: Slots, context: Context, depths: Sequence[Depth]
) -> Tensor:
    """Return what `attend_plain` returns, by `scaled_dot_product_attention`.

    No scores are kept, but a mask of a byte for each pair of nodes of a trace is.
    """
    keys, values, visible = [context.keys], [context.values], [~context.hidden]
    for depth in depths:
        theirs = Slots.arrange(depth.trace, len(slots.row))
        keys.append(depth.keys[theirs.row].transpose(1, 2))
        values.append(depth.values[theirs.row].transpose(1, 2))
        ancestor = torch.arange(len(queries), device=queries.device)
        if depth.ancestor is not None:
            ancestor = depth.ancestor
        width = theirs.row.shape[1]
        slot_BZ = (theirs.of_row % max(1, width))[ancestor][slots.row]
        visible.append(slot_BZ[..., None] == torch.arange(width, device=queries.device))
    attended_BNZE = functional.scaled_dot_product_attention(
        queries[slots.row].transpose(1, 2),
        torch.cat(keys, 2),
        torch.cat(values, 2),
        attn_mask=torch.cat(visible, 2)[:, None],
        enable_gqa=True,
    )
    return slots.flatten(attended_BNZE.transpose(1, 2)).flatten(1)
