"""Attention over SGLang's paged cache, one request at a time.

Shape legend, letters of tensor suffixes:
    N  new rows    C  rows of context and new ones    H  query heads    M  key-value heads
    E  head dimension
"""

from __future__ import annotations

import torch
from torch import Tensor

_operators = torch.library.Library("sgl_kernel", "FRAGMENT")

_operators.define(
    "decode_attention_cpu(Tensor query, Tensor(a!) key_cache, Tensor(b!) value_cache,"
    " float key_scale, float value_scale, Tensor(c!) output, Tensor? key, Tensor? value,"
    " Tensor slots, Tensor scratch, Tensor slot_table, Tensor table_rows, Tensor lengths,"
    " float scale, float soft_cap, bool is_cross, int window, Tensor? encoder_lengths,"
    " Tensor? sinks) -> ()"
)
_operators.define(
    "extend_attention_cpu(Tensor query, Tensor? key, Tensor? value, Tensor(a!) output,"
    " Tensor key_cache, Tensor value_cache, float key_scale, float value_scale,"
    " Tensor slot_table, Tensor table_rows, Tensor lengths, Tensor new_lengths,"
    " Tensor new_starts, int max_new_length, float scale, float soft_cap, bool is_cross,"
    " int window, Tensor? encoder_lengths, Tensor? sinks, Tensor? tree_mask,"
    " bool is_causal) -> ()"
)


def attend(
    query_NHE: Tensor,
    key_CME: Tensor,
    value_CME: Tensor,
    *,
    scale: float,
    soft_cap: float,
    visible_NC: Tensor | None,
) -> Tensor:
    """Return softmax attention [N, H, E] in float32.

    Args:
        scale: factor of the scores.
        soft_cap: bound of the scores by a hyperbolic tangent; 0 for none.
        visible_NC: bool, which rows each new row may see; None for all.
    """
    group_size = query_NHE.shape[1] // key_CME.shape[1]
    query_HNE = query_NHE.transpose(0, 1).float()
    key_HCE = key_CME.transpose(0, 1).float().repeat_interleave(group_size, dim=0)
    value_HCE = value_CME.transpose(0, 1).float().repeat_interleave(group_size, dim=0)
    scores_HNC = query_HNE @ key_HCE.transpose(1, 2) * scale
    if soft_cap > 0:
        scores_HNC = soft_cap * torch.tanh(scores_HNC / soft_cap)
    if visible_NC is not None:
        scores_HNC = scores_HNC.masked_fill(~visible_NC, float("-inf"))
    return (scores_HNC.softmax(-1) @ value_HCE).transpose(0, 1)


def _decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    key_scale: float,
    value_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    slots: Tensor,
    scratch: Tensor,
    slot_table: Tensor,
    table_rows: Tensor,
    lengths: Tensor,
    scale: float,
    soft_cap: float,
    is_cross: bool,
    window: int,
    encoder_lengths: Tensor | None,
    sinks: Tensor | None,
) -> None:
    _refuse(is_cross, sinks)
    if key is not None and value is not None:
        key_cache[slots.long()] = key.view(-1, *key_cache.shape[1:]).to(key_cache.dtype)
        value_cache[slots.long()] = value.view(-1, *value_cache.shape[1:]).to(value_cache.dtype)
    for index, length in enumerate(lengths.tolist()):
        held = slot_table[int(table_rows[index]), :length].long()
        held = held[-window:] if window > 0 else held
        output[index] = attend(
            query[index : index + 1],
            key_cache[held],
            value_cache[held],
            scale=scale,
            soft_cap=soft_cap,
            visible_NC=None,
        )[0].to(output.dtype)


def _extend(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    output: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    key_scale: float,
    value_scale: float,
    slot_table: Tensor,
    table_rows: Tensor,
    lengths: Tensor,
    new_lengths: Tensor,
    new_starts: Tensor,
    max_new_length: int,
    scale: float,
    soft_cap: float,
    is_cross: bool,
    window: int,
    encoder_lengths: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    _refuse(is_cross, sinks)
    mask_start = 0
    for index, (length, count) in enumerate(
        zip(lengths.tolist(), new_lengths.tolist(), strict=True)
    ):
        if count == 0:
            continue
        first, num_old = int(new_starts[index]), length - count
        held = slot_table[int(table_rows[index]), :length].long()
        keys, values = key_cache[held], value_cache[held]
        if key is not None and value is not None:
            rows = slice(first, first + count)
            keys[num_old:] = key[rows].view(count, *keys.shape[1:]).to(keys.dtype)
            values[num_old:] = value[rows].view(count, *values.shape[1:]).to(values.dtype)
        visible_NC = torch.ones(count, length, dtype=torch.bool)
        if tree_mask is not None:
            square = tree_mask[mask_start : mask_start + count * count]
            visible_NC[:, num_old:] = square.view(count, count).bool()
            mask_start += count * count
        elif is_causal:
            visible_NC[:, num_old:] = torch.ones(count, count, dtype=torch.bool).tril()
        if window > 0:
            own = torch.arange(num_old, length)[:, None]
            visible_NC &= torch.arange(length)[None] > own - window
        output[first : first + count] = attend(
            query[first : first + count],
            keys,
            values,
            scale=scale,
            soft_cap=soft_cap,
            visible_NC=visible_NC,
        ).to(output.dtype)


def _refuse(is_cross: bool, sinks: Tensor | None) -> None:
    if is_cross or sinks is not None:
        raise NotImplementedError("the CPU stand-in knows no cross attention and no sinks")


_operators.impl("decode_attention_cpu", _decode, "CPU")
_operators.impl("extend_attention_cpu", _extend, "CPU")
