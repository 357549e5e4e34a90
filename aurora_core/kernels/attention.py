"""Rotary embedding, key-value caching and causal attention over caches of several requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from aurora_core.kernels import dispatch


def rotate_and_store(
    qkv: Tensor,
    *,
    cosine: Tensor,
    sine: Tensor,
    position: Tensor,
    owner: Tensor,
    slot: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    num_heads: int,
) -> Tensor:
    """Rotate queries and keys by their positions, write keys and values, return the queries.

    Args:
        qkv: [R, (num_heads + 2 * kv_heads) * d], queries first.
        cosine: float32 [P, d / 2], a row per position; scaled already if the model scales.
        sine: likewise.
        position: int64 [R].
        owner: int64 [R]. Index of the row's cache in `keys` and `values`.
        slot: int64 [R]. Entry of that cache to write.
        keys: one contiguous [capacity, kv_heads, d] per request; written in place.
        values: likewise.
        num_heads: query heads.

    Returns:
        [R, num_heads, d]
    """
    num_kv_heads, depth = keys[0].shape[1:]
    if dispatch.use_compiled(qkv):
        from aurora_core.kernels import _elementwise_cpu

        qkv = qkv.contiguous()
        query = torch.empty((qkv.shape[0], num_heads, depth), dtype=torch.float32)
        _elementwise_cpu.rotate_and_store(
            qkv.data_ptr(),
            cosine.data_ptr(),
            sine.data_ptr(),
            position.numpy(),
            owner.numpy(),
            slot.numpy(),
            addresses(keys),
            addresses(values),
            query.data_ptr(),
            num_heads,
            num_kv_heads,
            depth,
        )
        return query
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, depth)
    c, s = cosine[position].to(qkv.dtype)[:, None], sine[position].to(qkv.dtype)[:, None]
    rotated = heads[:, : num_heads + num_kv_heads]
    first, second = rotated.chunk(2, dim=-1)
    rotated = torch.cat((first * c - second * s, second * c + first * s), dim=-1)
    for index in owner.unique().tolist():
        mine = owner == index
        keys[index][slot[mine]] = rotated[mine, num_heads:].to(keys[index].dtype)
        values[index][slot[mine]] = heads[mine, num_heads + num_kv_heads :].to(values[index].dtype)
    return rotated[:, :num_heads].contiguous()


def attend(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    owner: Tensor,
    length: Tensor,
    scale: float,
    *,
    branch: Tensor | None = None,
) -> Tensor:
    """Let each query row attend to `length` entries of its own cache.

    Without a branch these are the first ones. A row of a tree sees a prefix and then its branch:
    ancestors and itself, stored anywhere behind. It is computed as if they had been stored in one
    piece, so a node's result is that of its path alone, to the last bit with the compiled kernels.
    They lay the branch into the entries from `length - A'` on (A' = its size) and leave it there:
    store nodes behind the deepest of these.

    Args:
        query: [R, num_heads, d]; float32 on CPU.
        keys: one contiguous [capacity, kv_heads, d] per request.
        values: likewise.
        owner: int64 [R]. Index into `keys` and `values`.
        length: int64 [R], at least 1.
        scale: factor on the scores, usually d ** -0.5.
        branch: int64 [R, A]. Entries of the row's branch from the root's child down, its own
            last, padded with -1 at the end; counted in `length`.

    Returns:
        [R, num_heads * d]
    """
    num_kv_heads = keys[0].shape[1]
    num_rows, num_heads, depth = query.shape
    if dispatch.use_compiled(query) and depth % dispatch.NUM_LANES == 0:
        from aurora_core.kernels import _elementwise_cpu

        query = query.contiguous()
        y = torch.empty((num_rows, num_heads * depth), dtype=torch.float32)
        if num_rows:
            many = dispatch.num_threads() > 1
            items = num_rows * num_heads if many else 1
            scratch = torch.empty(items * attention_scratch(int(length.max())))
            run = _elementwise_cpu.attend_parallel if many else _elementwise_cpu.attend_serial
            run(
                query.data_ptr(),
                addresses(keys),
                addresses(values),
                owner.numpy(),
                length.numpy(),
                branch_array(branch, num_rows),
                num_heads,
                num_kv_heads,
                depth,
                scale,
                y.data_ptr(),
                scratch.data_ptr(),
            )
        return y
    y = torch.empty((num_rows, num_heads * depth), dtype=query.dtype, device=query.device)
    for index in owner.unique().tolist():
        mine = owner == index
        visible = _visible(length[mine], None if branch is None else branch[mine])
        longest = visible.shape[1]
        attended = torch.nn.functional.scaled_dot_product_attention(
            query[mine].transpose(0, 1)[None],
            keys[index][:longest].transpose(0, 1)[None].to(query.dtype),
            values[index][:longest].transpose(0, 1)[None].to(query.dtype),
            attn_mask=visible[None, None],
            scale=scale,
            enable_gqa=num_kv_heads != num_heads,
        )
        y[mine] = attended[0].transpose(0, 1).reshape(-1, num_heads * depth)
    return y


def _visible(length: Tensor, branch: Tensor | None) -> Tensor:
    """Return which cache entries each row sees, bool [R, longest]."""
    if branch is None:
        return torch.arange(int(length.max()), device=length.device)[None] < length[:, None]
    prefix = length - (branch >= 0).sum(1)
    longest = max(int(prefix.max()), int(branch.max()) + 1)
    visible = torch.arange(longest + 1, device=length.device)[None] < prefix[:, None]
    return visible.scatter(1, branch.where(branch >= 0, longest), True)[:, :longest]


def branch_array(branch: Tensor | None, num_rows: int) -> np.ndarray:
    """Return branches as the compiled kernels take them, int64 [num_rows, A]; A is 0 for none."""
    if branch is None:
        return np.empty((num_rows, 0), dtype=np.int64)
    return np.ascontiguousarray(branch.numpy())


def attention_scratch(longest: int) -> int:
    """Return the float32 values that the scores of one row and head need, padding included."""
    return longest + dispatch.NUM_LANES


def addresses(tensors: Sequence[Tensor]) -> np.ndarray:
    """Return where each tensor's data begins, uint64 [len(tensors)]."""
    return np.array([tensor.data_ptr() for tensor in tensors], dtype=np.uint64)
