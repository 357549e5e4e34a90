"""Dot products of a few activation rows with a few weight rows, written in LLVM IR.

A tile of outputs keeps a vector accumulator per output in registers and walks the shared dimension
once. Each output is the same chain of fused multiply-adds and the same final horizontal sum in a
tile of any shape, which is what makes `linear` row-invariant; a compiler that vectorises a plain
loop would choose another order for each shape.
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


_TILES = {1: 8, 2: 6, 3: 4, 4: 3, 5: 2, 6: 2}
"""Rows -> columns of a tile: enough sums to hide the latency of a multiply-add, few enough to stay
in sixteen vector registers."""


def _sweep(bfloat16: bool) -> Any:
    """Return the intrinsic `sweep` for one weight type."""

    @intrinsic  # type: ignore[untyped-decorator]
    def sweep(
        context: Any, rows: Any, weight: Any, x: Any, y: Any, first: Any, last: Any, n: Any, k: Any
    ) -> Any:
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            builder.call(_sweep_function(builder.module, bfloat16), arguments)

        signature = types.void(types.int64, *[types.uint64] * 3, *[types.int64] * 4)
        return signature, generate

    return sweep


sweep_bfloat16 = _sweep(True)
"""(rows, weight, x, y, first, last, num_columns, depth): compute 1 to 6 rows of
`y[r, c] = sum_k x[r, k] * weight[c, k]` for columns [first, last). The three addresses point to
matrices with `depth`, `depth` and `num_columns` elements a row; depth is a multiple of
`NUM_LANES`."""

sweep_float32 = _sweep(False)
"""The same for float32 weights."""


@intrinsic  # type: ignore[untyped-decorator]
def dots(
    context: Any, columns: Any, x: Any, y: Any, first: Any, last: Any, stride: Any, depth: Any
) -> Any:
    """(columns, x, y, first, last, stride, depth): y[c] = x . columns[c] for c in [first, last).

    Rows of `columns` are float32 and `stride` elements apart.
    """

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        columns, x, y, first, last, stride, depth = arguments
        size = stride.type(4)

        def emit(width: int) -> Callable[[Any], None]:
            def tile(c: Any) -> None:
                start = builder.add(columns, builder.mul(builder.mul(c, stride), size))
                out = builder.add(y, builder.mul(c, size))
                one = stride.type(1)
                _generate_tile(builder, (start, x, out, stride, one, one, depth), 1, width, False)

            return tile

        _tiled(builder, first, last, 8, emit)

    return types.void(*[types.uint64] * 3, *[types.int64] * 4), generate


def _sweep_function(module: Any, bfloat16: bool) -> Any:
    """Define the sweep once per module: it is too long to be copied to every caller."""
    name = f"aurora.sweep.{'bfloat16' if bfloat16 else 'float32'}"
    if name in module.globals:
        return module.globals[name]
    i64 = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [i64] * 8), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    rows, weight, x, y, first, last, num_columns, depth = function.args
    end = function.append_basic_block("end")
    choice = builder.switch(rows, end)
    for num_rows, width in _TILES.items():
        block = function.append_basic_block(f"rows{num_rows}")
        choice.add_case(i64(num_rows), block)
        builder.position_at_end(block)

        def emit(width: int, num_rows: int = num_rows) -> Callable[[Any], None]:
            def tile(n: Any) -> None:
                offset = builder.mul(builder.mul(n, depth), i64(2 if bfloat16 else 4))
                start = builder.add(weight, offset)
                out = builder.add(y, builder.mul(n, i64(4)))
                _generate_tile(
                    builder,
                    (start, x, out, depth, depth, num_columns, depth),
                    num_rows,
                    width,
                    bfloat16,
                )

            return tile

        _tiled(builder, first, last, width, emit)
        builder.branch(end)
    builder.position_at_end(end)
    builder.ret_void()
    return function


def _tiled(
    builder: Any, first: Any, last: Any, width: int, emit: Callable[[int], Callable[[Any], None]]
) -> None:
    """Cover [first, last) with tiles of `width` columns and the rest with single columns."""
    i64 = first.type
    whole = builder.mul(builder.sdiv(builder.sub(last, first), i64(width)), i64(width))
    middle = builder.add(first, whole)
    for start, stop, step in ((first, middle, width), (middle, last, 1)):
        before = builder.block
        loop, done = builder.append_basic_block("tiles"), builder.append_basic_block("tiles.end")
        builder.cbranch(builder.icmp_signed("<", start, stop), loop, done)
        builder.position_at_end(loop)
        index = builder.phi(i64)
        index.add_incoming(start, before)
        emit(step)(index)
        following = builder.add(index, i64(step))
        index.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, stop), loop, done)
        builder.position_at_end(done)


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
    columns = [
        builder.gep(weight, [builder.mul(weight_stride, i64(c))]) for c in range(num_columns)
    ]
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
