"""A whole stack of Llama-like decoder layers in one compiled call. Imported on first use.

Calling the kernels one by one from Python costs about a tenth of a small model's decoding time.
"""

from __future__ import annotations

import numpy as np
from numba import carray, float32, njit, uint64

from aurora_core.kernels._elementwise_cpu import (
    attend_parallel,
    attend_serial,
    pointer,
    rms_norm,
    rotate_and_store,
    silu_multiply,
)
from aurora_core.kernels._linear_cpu import product_parallel, product_serial
from aurora_core.kernels.linear import PARALLEL_ELEMENTS

INPUT_NORM, QKV, QKV_BIAS, QUERY_NORM, KEY_NORM, OUTPUT, POST_NORM, GATE_UP, DOWN = range(9)
"""Columns of the table of weight addresses; 0 stands for an absent weight."""


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _add(total, term, count):  # type: ignore[no-untyped-def]
    a, b = carray(pointer(total), (count,), float32), carray(pointer(term), (count,), float32)
    for i in range(count):
        a[i] += b[i]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _add_bias(rows, bias, num_rows, width):  # type: ignore[no-untyped-def]
    for r in range(num_rows):
        _add(rows + uint64(r * width * 4), bias, width)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _normalise_heads(qkv, weight, first, count, epsilon, num_rows, width, depth):  # type: ignore[no-untyped-def]
    """Apply a per-head norm to heads [first, first + count) of each row of qkv, in place."""
    for r in range(num_rows):
        start = qkv + uint64((r * width + first * depth) * 4)
        rms_norm(start, weight, epsilon, start, count, depth)


_SIGNATURE = (
    "void(uint64, uint64[:, ::1], uint64[:, ::1], uint64[:, ::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1], int64[:, ::1], uint64, uint64, int64[::1], float32[:, ::1], int64,"
    " int64, int64, int64, int64, float32, boolean, int64, uint64)"
)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _product(weight, x, y, m, n, depth, bfloat16, threads):  # type: ignore[no-untyped-def]
    if threads == 1 or n * depth < PARALLEL_ELEMENTS:
        product_serial(weight, x, y, m, n, depth, bfloat16, threads)
    else:
        product_parallel(weight, x, y, m, n, depth, bfloat16, threads)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query, keys, values, owner, length, branch, num_heads, num_kv_heads, depth, scale, y, scratch,
    threads,
):  # fmt: skip
    if threads == 1:
        attend_serial(
            query, keys, values, owner, length, branch, num_heads, num_kv_heads, depth, scale, y,
            scratch,
        )  # fmt: skip
    else:
        attend_parallel(
            query, keys, values, owner, length, branch, num_heads, num_kv_heads, depth, scale, y,
            scratch,
        )  # fmt: skip


@njit(_SIGNATURE, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def stack(  # type: ignore[no-untyped-def]
    hidden, weights, keys, values, position, owner, slot, length, branch, cosine, sine, capture,
    captured, hidden_size, intermediate_size, num_heads, num_kv_heads, depth, epsilon,
    bfloat16, threads, scratch,
):  # fmt: skip
    m = position.size
    width = (num_heads + 2 * num_kv_heads) * depth
    inner = num_heads * depth
    scale = float32(1.0 / np.sqrt(depth))
    normed = scratch
    qkv = normed + uint64(m * hidden_size * 4)
    query = qkv + uint64(m * width * 4)
    mixed = query + uint64(m * inner * 4)
    gate_up = mixed + uint64(m * inner * 4)
    gated = gate_up + uint64(m * 2 * intermediate_size * 4)
    scores = gated + uint64(m * intermediate_size * 4)
    stream = carray(pointer(hidden), (m, hidden_size), float32)
    num_layers = weights.shape[0]
    for layer in range(num_layers + 1):
        for c in range(capture.size):
            if capture[c] == layer:
                captured[:, c * hidden_size : (c + 1) * hidden_size] = stream
        if layer == num_layers:
            break
        w = weights[layer]
        rms_norm(hidden, w[INPUT_NORM], epsilon, normed, m, hidden_size)
        _product(w[QKV], normed, qkv, m, width, hidden_size, bfloat16, threads)
        if w[QKV_BIAS]:
            _add_bias(qkv, w[QKV_BIAS], m, width)
        if w[QUERY_NORM]:
            _normalise_heads(qkv, w[QUERY_NORM], 0, num_heads, epsilon, m, width, depth)
            _normalise_heads(qkv, w[KEY_NORM], num_heads, num_kv_heads, epsilon, m, width, depth)
        rotate_and_store(
            qkv, cosine, sine, position, owner, slot, keys[layer], values[layer], query,
            num_heads, num_kv_heads, depth,
        )  # fmt: skip
        _attend(
            query, keys[layer], values[layer], owner, length, branch, num_heads, num_kv_heads,
            depth, scale, mixed, scores, threads,
        )  # fmt: skip
        _product(w[OUTPUT], mixed, normed, m, hidden_size, inner, bfloat16, threads)
        _add(hidden, normed, m * hidden_size)
        rms_norm(hidden, w[POST_NORM], epsilon, normed, m, hidden_size)
        _product(
            w[GATE_UP], normed, gate_up, m, 2 * intermediate_size, hidden_size, bfloat16, threads
        )
        silu_multiply(gate_up, gated, m, intermediate_size)
        _product(w[DOWN], gated, normed, m, hidden_size, intermediate_size, bfloat16, threads)
        _add(hidden, normed, m * hidden_size)
