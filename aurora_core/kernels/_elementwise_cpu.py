"""Numba kernels other than the matrix product. Imported on first use.

Every row is computed by the same vector loops whatever the batch, so its rounding never changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, float32, int64, njit, prange, types, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from aurora_core.kernels.dispatch import NUM_LANES
from aurora_core.kernels.microkernel import dots
from aurora_core.kernels.vector_ir import (
    sum_of_squares,
    vector_exp_sum,
    vector_max,
    vector_silu_multiply,
    weighted_sum,
    weighted_sum_64,
)

_LEAST = np.float32(-np.inf)


@intrinsic  # type: ignore[untyped-decorator]
def pointer(context: Any, address: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uint64), generate


@njit("void(uint64, uint64, float32, uint64, int64, int64)", nogil=True, cache=True)  # type: ignore[untyped-decorator]
def rms_norm(x, weight, epsilon, y, num_rows, depth):  # type: ignore[no-untyped-def]
    factors = carray(pointer(weight), (depth,), float32)
    for r in range(num_rows):
        xa = x + uint64(r * depth * 4)
        row = carray(pointer(xa), (depth,), float32)
        out = carray(pointer(y + uint64(r * depth * 4)), (depth,), float32)
        square = sum_of_squares(xa, depth)
        scale = float32(1.0) / np.sqrt(square / float32(depth) + epsilon)
        for d in range(depth):
            out[d] = row[d] * scale * factors[d]


@njit("void(uint64, uint64, int64, int64)", nogil=True, cache=True)  # type: ignore[untyped-decorator]
def silu_multiply(gate_up, y, num_rows, width):  # type: ignore[no-untyped-def]
    for r in range(num_rows):
        gate = gate_up + uint64(r * width * 8)
        vector_silu_multiply(gate, gate + uint64(width * 4), y + uint64(r * width * 4), width)


@njit(  # type: ignore[untyped-decorator]
    "void(uint64, uint64, uint64, int64[::1], int64[::1], int64[::1], uint64[::1], uint64[::1],"
    " uint64, int64, int64, int64)",
    nogil=True,
    cache=True,
)
def rotate_and_store(  # type: ignore[no-untyped-def]
    qkv, cosine, sine, position, owner, slot, keys, values, query, num_heads, num_kv_heads, depth
):
    half = depth // 2
    width = (num_heads + 2 * num_kv_heads) * depth
    for r in range(position.size):
        row = carray(pointer(qkv + uint64(r * width * 4)), (width,), float32)
        turn = uint64(position[r] * half * 4)
        cos = carray(pointer(cosine + turn), (half,), float32)
        sin = carray(pointer(sine + turn), (half,), float32)
        turned = carray(
            pointer(query + uint64(r * num_heads * depth * 4)), (num_heads, depth), float32
        )
        for h in range(num_heads):
            start = h * depth
            for d in range(half):
                a, b = row[start + d], row[start + half + d]
                turned[h, d] = a * cos[d] - b * sin[d]
                turned[h, half + d] = b * cos[d] + a * sin[d]
        offset = uint64(slot[r] * num_kv_heads * depth * 4)
        key = carray(pointer(keys[owner[r]] + offset), (num_kv_heads, depth), float32)
        value = carray(pointer(values[owner[r]] + offset), (num_kv_heads, depth), float32)
        for h in range(num_kv_heads):
            start = (num_heads + h) * depth
            for d in range(half):
                a, b = row[start + d], row[start + half + d]
                key[h, d] = a * cos[d] - b * sin[d]
                key[h, half + d] = b * cos[d] + a * sin[d]
            start = (num_heads + num_kv_heads + h) * depth
            for d in range(depth):
                value[h, d] = row[start + d]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _attend_head(query, key, value, stride, length, depth, scale, scores, y):  # type: ignore[no-untyped-def]
    """One query head over `length` cached entries; all but lengths and scale are addresses."""
    dots(key, query, scores, 0, length, stride, depth)
    padded = (length + NUM_LANES - 1) // NUM_LANES * NUM_LANES
    values = carray(pointer(scores), (padded,), float32)
    for t in range(length):
        values[t] *= scale
    for t in range(length, padded):
        values[t] = _LEAST
    best = vector_max(scores, padded)
    # A padded score becomes exp(-87), which vanishes beside the 1 that the best score contributes.
    mass = vector_exp_sum(scores, scores, padded, best)
    d = int64(0)
    while d + 64 <= depth:
        weighted_sum_64(
            scores, value + uint64(d * 4), stride, y + uint64(d * 4), length, float32(1.0) / mass
        )
        d += 64
    while d < depth:
        weighted_sum(
            scores, value + uint64(d * 4), stride, y + uint64(d * 4), length, float32(1.0) / mass
        )
        d += NUM_LANES


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _attend_item(  # type: ignore[no-untyped-def]
    r, h, query, keys, values, owner, length, num_heads, num_kv_heads, depth, scale, scores, y
):
    start = uint64((r * num_heads + h) * depth * 4)
    shared = uint64(h // (num_heads // num_kv_heads) * depth * 4)
    _attend_head(
        query + start, keys[owner[r]] + shared, values[owner[r]] + shared, num_kv_heads * depth,
        length[r], depth, scale, scores, y + start,
    )  # fmt: skip


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _lay_branch(r, keys, values, owner, length, branch, width):  # type: ignore[no-untyped-def]
    """Copy the branch of a row behind its prefix, where the loops above expect it."""
    count = 0
    while count < branch.shape[1] and branch[r, count] >= 0:
        count += 1
    first = length[r] - count
    for i in range(count):
        if branch[r, i] == first + i:
            continue
        for cache in (keys[owner[r]], values[owner[r]]):
            source = carray(pointer(cache + uint64(branch[r, i] * width * 4)), (width,), float32)
            entry = carray(pointer(cache + uint64((first + i) * width * 4)), (width,), float32)
            for d in range(width):
                entry[d] = source[d]


_ATTEND = (
    "void(uint64, uint64[::1], uint64[::1], int64[::1], int64[::1], int64[:, ::1], int64, int64,"
    " int64, float32, uint64, uint64)"
)

# Scratch memory is the caller's: numba frees an array of its own after the last use of the array
# itself, however long an address taken from it is used.


@njit(_ATTEND, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def attend_serial(  # type: ignore[no-untyped-def]
    query, keys, values, owner, length, branch, num_heads, num_kv_heads, depth, scale, y, scratch
):
    """`scratch` holds the longest length and `NUM_LANES` more float32 values."""
    for r in range(owner.size):
        _lay_branch(r, keys, values, owner, length, branch, num_kv_heads * depth)
        for h in range(num_heads):
            _attend_item(
                r, h, query, keys, values, owner, length, num_heads, num_kv_heads, depth, scale,
                scratch, y,
            )  # fmt: skip


@njit(_ATTEND, nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def attend_parallel(  # type: ignore[no-untyped-def]
    query, keys, values, owner, length, branch, num_heads, num_kv_heads, depth, scale, y, scratch
):
    """`scratch` holds as much for every row and head."""
    longest = length.max() + NUM_LANES
    if branch.shape[1]:
        # Rows of one request lay their branches in the same place: one row at a time.
        for r in range(owner.size):
            _lay_branch(r, keys, values, owner, length, branch, num_kv_heads * depth)
            for h in prange(num_heads):
                _attend_item(
                    r, h, query, keys, values, owner, length, num_heads, num_kv_heads, depth,
                    scale, scratch + uint64((r * num_heads + h) * longest * 4), y,
                )  # fmt: skip
        return
    for item in prange(owner.size * num_heads):
        _attend_item(
            item // num_heads, item % num_heads, query, keys, values, owner, length, num_heads,
            num_kv_heads, depth, scale, scratch + uint64(item * longest * 4), y,
        )  # fmt: skip


@njit("void(uint64, int64, int64, int64[::1], float32[::1], uint64)", nogil=True, cache=True)  # type: ignore[untyped-decorator]
def argmax_logsumexp(logits, num_rows, width, best_index, logsumexp, scratch):  # type: ignore[no-untyped-def]
    """`width` is a multiple of the lanes; `scratch` holds `width` float32 values."""
    for r in range(num_rows):
        address = logits + uint64(r * width * 4)
        row = carray(pointer(address), (width,), float32)
        best = vector_max(address, width)
        at = 0
        while at < width - 1 and row[at] != best:
            at += 1
        best_index[r] = at
        logsumexp[r] = best + np.log(vector_exp_sum(address, scratch, width, best))
