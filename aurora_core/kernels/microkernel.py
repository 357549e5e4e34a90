"""Dot products of a few activation rows with a few weight rows, written in LLVM IR.

A tile of `num_rows` x `num_columns` outputs keeps one vector accumulator per output in registers and
walks the shared dimension once. Each output is the same chain of fused multiply-adds and the same
final horizontal sum in a tile of any shape, which is what makes `linear` row-invariant; a compiler
that vectorises a plain loop would choose another order for each shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from aurora_core.kernels.dispatch import NUM_LANES

PREFETCH_TILES = 8
"""How many tiles ahead weights are asked for: far enough to hide the latency of main memory."""


def dot_tile(num_rows: int, num_columns: int, *, bfloat16: bool) -> Any:
    """Return an intrinsic `(weight, x, y, weight_stride, x_stride, y_stride, depth) -> None`.

    It computes `y[r, c] = sum_k x[r, k] * weight[c, k]` for one tile. The first three arguments are
    addresses, strides and depth count elements, and depth is a positive multiple of `NUM_LANES`.

    Args:
        num_rows: activation rows in the tile.
        num_columns: weight rows in the tile.
        bfloat16: whether the weights are bfloat16 bit patterns; float32 otherwise.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(context: Any, weight: Any, x: Any, y: Any, sw: Any, sx: Any, sy: Any, depth: Any) -> Any:
        signature = types.void(*[types.uint64] * 3, *[types.int64] * 4)

        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            _generate_tile(builder, arguments, num_rows, num_columns, bfloat16)

        return signature, generate

    return tile


def _generate_tile(
    builder: Any, arguments: Any, num_rows: int, num_columns: int, bfloat16: bool
) -> None:
    weight, x, y, weight_stride, x_stride, y_stride, depth = arguments
    i8, i16, i32, i64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
    f32 = ir.FloatType()
    floats = ir.VectorType(f32, NUM_LANES)
    words = ir.VectorType(i32, NUM_LANES)
    halves = ir.VectorType(i16, NUM_LANES)
    element = i16 if bfloat16 else f32
    weight_bytes = 2 if bfloat16 else 4

    weight = builder.inttoptr(weight, element.as_pointer())
    x = builder.inttoptr(x, f32.as_pointer())
    y = builder.inttoptr(y, f32.as_pointer())
    columns = [builder.gep(weight, [builder.mul(weight_stride, i64(c))]) for c in range(num_columns)]
    rows = [builder.gep(x, [builder.mul(x_stride, i64(r))]) for r in range(num_rows)]
    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(floats, [floats] * 3), f"llvm.fma.v{NUM_LANES}f32"
    )

    prefetch = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [i8.as_pointer(), i32, i32, i32]),
        "llvm.prefetch.p0i8",
    )

    def step(k: Any, sums: list[list[Any]]) -> list[list[Any]]:
        """Add the products of `NUM_LANES` elements from k on."""
        vectors = []
        for column in columns:
            address = builder.gep(column, [k])
            if bfloat16:
                packed = builder.load(
                    builder.bitcast(address, halves.as_pointer()), align=weight_bytes
                )
                shifted = builder.shl(
                    builder.zext(packed, words), ir.Constant(words, [16] * NUM_LANES)
                )
                vectors.append(builder.bitcast(shifted, floats))
            else:
                vectors.append(
                    builder.load(builder.bitcast(address, floats.as_pointer()), align=weight_bytes)
                )
        totals = []
        for r in range(num_rows):
            activation = builder.load(
                builder.bitcast(builder.gep(rows[r], [k]), floats.as_pointer()), align=4
            )
            totals.append(
                [builder.call(fma, [v, activation, sums[r][c]]) for c, v in enumerate(vectors)]
            )
        return totals

    def fetch_ahead(k: Any) -> None:
        """Ask for the cache lines that the tile after next reads at k."""
        for column in columns:
            ahead = builder.gep(column, [builder.add(k, distance)])
            builder.call(
                prefetch, [builder.bitcast(ahead, i8.as_pointer()), i32(0), i32(3), i32(1)]
            )

    distance = builder.mul(weight_stride, i64(PREFETCH_TILES * num_columns))
    zero = ir.Constant(floats, [0.0] * NUM_LANES)
    sums = [[zero] * num_columns for _ in range(num_rows)]
    lines = 64 // weight_bytes // NUM_LANES
    whole = builder.and_(depth, i64(-lines * NUM_LANES))
    sums = _accumulate(builder, i64(0), whole, lines * NUM_LANES, sums, step, fetch_ahead, lines)
    totals = _accumulate(builder, whole, depth, NUM_LANES, sums, step, None, 1)
    for r in range(num_rows):
        for c in range(num_columns):
            offset = builder.add(builder.mul(y_stride, i64(r)), i64(c))
            builder.store(horizontal_sum(builder, totals[r][c]), builder.gep(y, [offset]))


def _accumulate(
    builder: Any,
    first: Any,
    last: Any,
    stride: int,
    sums: list[list[Any]],
    step: Callable[[Any, list[list[Any]]], list[list[Any]]],
    fetch_ahead: Callable[[Any], None] | None,
    steps: int,
) -> list[list[Any]]:
    """Emit `for k in range(first, last, stride)` around `steps` unrolled steps; may run never."""
    i64 = ir.IntType(64)
    before = builder.block
    loop, done = builder.append_basic_block("depth"), builder.append_basic_block("depth.end")
    builder.cbranch(builder.icmp_signed("<", first, last), loop, done)
    builder.position_at_end(loop)
    k = builder.phi(i64)
    k.add_incoming(first, before)
    carried = [[builder.phi(value.type) for value in row] for row in sums]
    totals = carried
    if fetch_ahead is not None:
        fetch_ahead(k)
    for index in range(steps):
        totals = step(builder.add(k, i64(index * NUM_LANES)), totals)
    following = builder.add(k, i64(stride))
    k.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, last), loop, done)
    builder.position_at_end(done)
    results = [[builder.phi(value.type) for value in row] for row in sums]
    for r, row in enumerate(sums):
        for c, value in enumerate(row):
            carried[r][c].add_incoming(value, before)
            carried[r][c].add_incoming(totals[r][c], loop)
            results[r][c].add_incoming(value, before)
            results[r][c].add_incoming(totals[r][c], loop)
    return results


def horizontal_sum(builder: Any, vector: Any) -> Any:
    """Add the lanes pairwise, upper half onto lower half."""
    i32 = ir.IntType(32)
    width = NUM_LANES
    while width > 1:
        half = width // 2
        mask = ir.VectorType(i32, half)
        low = builder.shuffle_vector(vector, vector, ir.Constant(mask, list(range(half))))
        high = builder.shuffle_vector(vector, vector, ir.Constant(mask, list(range(half, width))))
        vector, width = builder.fadd(low, high), half
    return builder.extract_element(vector, ir.Constant(i32, 0))
