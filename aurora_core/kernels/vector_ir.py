"""Vector loops in LLVM IR: maximum, sums, exponential, gated activation, weighted sum.

A compiler decides anew for each loop whether and how to vectorise it; here the order of operations
is fixed, so that a row's result is the same in every kernel that contains it. Counts are multiples
of `NUM_LANES`; callers pad.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from aurora_core.kernels.dispatch import NUM_LANES
from aurora_core.kernels.microkernel import horizontal_sum

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS = ir.VectorType(_F32, NUM_LANES)
_WORDS = ir.VectorType(_I32, NUM_LANES)


def _splat(value: float) -> Any:
    return ir.Constant(_FLOATS, [value] * NUM_LANES)


def _broadcast(builder: Any, scalar: Any) -> Any:
    one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(_WORDS, [0] * NUM_LANES))


def _load(builder: Any, base: Any, index: Any) -> Any:
    address = builder.bitcast(builder.gep(base, [index]), _FLOATS.as_pointer())
    return builder.load(address, align=4)


def _store(builder: Any, vector: Any, base: Any, index: Any) -> None:
    builder.store(
        vector, builder.bitcast(builder.gep(base, [index]), _FLOATS.as_pointer()), align=4
    )


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fma.v{NUM_LANES}f32"
    )
    return builder.call(function, [a, b, c])


def _loop(
    builder: Any, count: Any, step: int, initial: list[Any], body: Callable[..., list[Any]]
) -> list[Any]:
    """Emit `for i in range(0, count, step)` with loop-carried vectors; count >= step."""
    before = builder.block
    loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(_I64)
    index.add_incoming(_I64(0), before)
    carried = [builder.phi(value.type) for value in initial]
    for phi, value in zip(carried, initial, strict=True):
        phi.add_incoming(value, before)
    results = body(index, carried)
    following = builder.add(index, _I64(step))
    index.add_incoming(following, loop)
    for phi, value in zip(carried, results, strict=True):
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    builder.position_at_end(done)
    return results


def _exponential(builder: Any, x: Any) -> Any:
    """exp(x) to about two units in the last place, clamped to [-87, 88].

    Cody-Waite range reduction and the polynomial of `expf` in the Cephes library.
    """
    for bound, order in ((-87.0, "<"), (88.0, ">")):
        outside = builder.fcmp_ordered(order, x, _splat(bound))
        x = builder.select(outside, _splat(bound), x)
    floor = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_FLOATS, [_FLOATS]), f"llvm.floor.v{NUM_LANES}f32"
    )
    n = builder.call(floor, [_fma(builder, x, _splat(1.44269504088896341), _splat(0.5))])
    r = _fma(builder, n, _splat(-0.693359375), x)
    r = _fma(builder, n, _splat(2.12194440e-4), r)
    y = _splat(1.9875691500e-4)
    for coefficient in (
        1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
    ):  # fmt: skip
        y = _fma(builder, y, r, _splat(coefficient))
    y = builder.fadd(_fma(builder, y, builder.fmul(r, r), r), _splat(1.0))
    exponent = builder.add(builder.fptosi(n, _WORDS), ir.Constant(_WORDS, [127] * NUM_LANES))
    power = builder.shl(exponent, ir.Constant(_WORDS, [23] * NUM_LANES))
    return builder.fmul(y, builder.bitcast(power, _FLOATS))


def _floats(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _F32.as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def sum_of_squares(context: Any, x: Any, count: Any) -> Any:
    """(address, count) -> float32: the sum of the squares of `count` float32 values."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        base = _floats(builder, arguments[0])

        def body(index: Any, carried: list[Any]) -> list[Any]:
            value = _load(builder, base, index)
            return [_fma(builder, value, value, carried[0])]

        (total,) = _loop(builder, arguments[1], NUM_LANES, [_splat(0.0)], body)
        return horizontal_sum(builder, total)

    return types.float32(types.uint64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def vector_max(context: Any, x: Any, count: Any) -> Any:
    """(address, count) -> float32: the largest of `count` float32 values."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        base = _floats(builder, arguments[0])

        def body(index: Any, carried: list[Any]) -> list[Any]:
            value = _load(builder, base, index)
            larger = builder.fcmp_ordered(">", value, carried[0])
            return [builder.select(larger, value, carried[0])]

        (best,) = _loop(builder, arguments[1], NUM_LANES, [_splat(float("-inf"))], body)
        result = builder.extract_element(best, ir.Constant(_I32, 0))
        for lane in range(1, NUM_LANES):
            value = builder.extract_element(best, ir.Constant(_I32, lane))
            result = builder.select(builder.fcmp_ordered(">", value, result), value, result)
        return result

    return types.float32(types.uint64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def vector_exp_sum(context: Any, x: Any, y: Any, count: Any, shift: Any) -> Any:
    """(x, y, count, shift) -> float32: write y = exp(x - shift), return its sum. y may be x."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        source, destination = (_floats(builder, address) for address in arguments[:2])
        shift_vector = _broadcast(builder, arguments[3])

        def body(index: Any, carried: list[Any]) -> list[Any]:
            shifted = builder.fsub(_load(builder, source, index), shift_vector)
            value = _exponential(builder, shifted)
            _store(builder, value, destination, index)
            return [builder.fadd(carried[0], value)]

        (total,) = _loop(builder, arguments[2], NUM_LANES, [_splat(0.0)], body)
        return horizontal_sum(builder, total)

    return types.float32(types.uint64, types.uint64, types.int64, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def vector_silu_multiply(context: Any, gate: Any, up: Any, y: Any, count: Any) -> Any:
    """(gate, up, y, count): write y = gate / (1 + exp(-gate)) * up."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        gates, ups, destination = (_floats(builder, address) for address in arguments[:3])

        def body(index: Any, carried: list[Any]) -> list[Any]:
            value = _load(builder, gates, index)
            negative = builder.fsub(_splat(0.0), value)
            divisor = builder.fadd(_splat(1.0), _exponential(builder, negative))
            product = builder.fmul(builder.fdiv(value, divisor), _load(builder, ups, index))
            _store(builder, product, destination, index)
            return []

        _loop(builder, arguments[3], NUM_LANES, [], body)

    return types.void(types.uint64, types.uint64, types.uint64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def weighted_sum(
    context: Any, weights: Any, values: Any, stride: Any, y: Any, count: Any, scale: Any
) -> Any:
    """(weights, values, stride, y, count, scale): y[0:8] = scale * sum_t weights[t] * values[t].

    One vector of the output at a time; `stride` is the distance of two rows of values in elements.
    """

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        base_weights, base_values = (_floats(builder, address) for address in arguments[:2])
        destination = _floats(builder, arguments[3])

        def body(index: Any, carried: list[Any]) -> list[Any]:
            weight = _broadcast(builder, builder.load(builder.gep(base_weights, [index])))
            value = _load(builder, base_values, builder.mul(index, arguments[2]))
            return [_fma(builder, weight, value, carried[0])]

        (total,) = _loop(builder, arguments[4], 1, [_splat(0.0)], body)
        scaled = builder.fmul(total, _broadcast(builder, arguments[5]))
        _store(builder, scaled, destination, _I64(0))

    signature = types.void(
        types.uint64, types.uint64, types.int64, types.uint64, types.int64, types.float32
    )
    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def weighted_sum_64(
    context: Any, weights: Any, values: Any, stride: Any, y: Any, count: Any, scale: Any
) -> Any:
    """Like `weighted_sum` for 64 outputs at once, in the same order of operations."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        base_weights, base_values = (_floats(builder, address) for address in arguments[:2])
        destination = _floats(builder, arguments[3])
        offsets = [_I64(lane) for lane in range(0, 64, NUM_LANES)]

        def body(index: Any, carried: list[Any]) -> list[Any]:
            weight = _broadcast(builder, builder.load(builder.gep(base_weights, [index])))
            row = builder.mul(index, arguments[2])
            return [
                _fma(builder, weight, _load(builder, base_values, builder.add(row, offset)), total)
                for offset, total in zip(offsets, carried, strict=True)
            ]

        totals = _loop(builder, arguments[4], 1, [_splat(0.0)] * len(offsets), body)
        factor = _broadcast(builder, arguments[5])
        for offset, total in zip(offsets, totals, strict=True):
            _store(builder, builder.fmul(total, factor), destination, offset)

    signature = types.void(
        types.uint64, types.uint64, types.int64, types.uint64, types.int64, types.float32
    )
    return signature, generate
