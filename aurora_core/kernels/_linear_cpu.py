"""Numba drivers that cut a matrix product into register tiles. Imported on first use."""

from __future__ import annotations

from typing import Any

from numba import njit, prange

from aurora_core.kernels.microkernel import dot_tile

PANEL = 48
"""Weight rows kept in the first-level cache while all activation rows pass over them."""

_SERIAL = "void(uint64, uint64, uint64, int64, int64, int64)"
_PARALLEL = "void(uint64, uint64, uint64, int64, int64, int64, int64)"


def _sweep(num_rows: int, width: int, *, bfloat16: bool) -> Any:
    """Return a function that computes `num_rows` rows of y for weight rows [first, last)."""
    size = 2 if bfloat16 else 4
    tile = dot_tile(num_rows, width, bfloat16=bfloat16)
    edge = dot_tile(num_rows, 1, bfloat16=bfloat16)

    @njit(nogil=True)  # type: ignore[untyped-decorator]
    def sweep(weight, x, y, first, last, num_columns, depth):  # type: ignore[no-untyped-def]
        n = first
        while n + width <= last:
            tile(weight + n * depth * size, x, y + n * 4, depth, depth, num_columns, depth)
            n += width
        while n < last:
            edge(weight + n * depth * size, x, y + n * 4, depth, depth, num_columns, depth)
            n += 1

    return sweep


def _build(bfloat16: bool) -> tuple[Any, Any]:
    """Return the serial and the two-or-more-threads product for one weight type."""
    # Rows x columns per tile: enough independent sums to hide the latency of a multiply-add, few
    # enough to stay in sixteen registers.
    sweep1, sweep2, sweep3 = (_sweep(r, c, bfloat16=bfloat16) for r, c in ((1, 8), (2, 6), (3, 4)))
    sweep4, sweep5, sweep6 = (_sweep(r, c, bfloat16=bfloat16) for r, c in ((4, 3), (5, 2), (6, 2)))

    @njit(nogil=True)  # type: ignore[untyped-decorator]
    def columns(weight, x, y, m, num_columns, depth, first, last):  # type: ignore[no-untyped-def]
        panel = first
        while panel < last:
            stop = min(panel + PANEL, last)
            row = 0
            while row < m:
                rest = m - row
                # 7 and 8 rows go as 4 + 3 and 4 + 4: a lone seventh row would waste a pass.
                take = rest if rest <= 6 else (4 if rest <= 8 else 6)
                xr = x + row * depth * 4
                yr = y + row * num_columns * 4
                if take == 1:
                    sweep1(weight, xr, yr, panel, stop, num_columns, depth)
                elif take == 2:
                    sweep2(weight, xr, yr, panel, stop, num_columns, depth)
                elif take == 3:
                    sweep3(weight, xr, yr, panel, stop, num_columns, depth)
                elif take == 4:
                    sweep4(weight, xr, yr, panel, stop, num_columns, depth)
                elif take == 5:
                    sweep5(weight, xr, yr, panel, stop, num_columns, depth)
                else:
                    sweep6(weight, xr, yr, panel, stop, num_columns, depth)
                row += take
            panel = stop

    @njit(_SERIAL, nogil=True)  # type: ignore[untyped-decorator]
    def serial(weight, x, y, m, num_columns, depth):  # type: ignore[no-untyped-def]
        columns(weight, x, y, m, num_columns, depth, 0, num_columns)

    @njit(_PARALLEL, nogil=True, parallel=True)  # type: ignore[untyped-decorator]
    def parallel(weight, x, y, m, num_columns, depth, parts):  # type: ignore[no-untyped-def]
        share = (num_columns // parts + PANEL - 1) // PANEL * PANEL
        for part in prange(parts):
            first = min(part * share, num_columns)
            last = num_columns if part == parts - 1 else min(first + share, num_columns)
            columns(weight, x, y, m, num_columns, depth, first, last)

    return serial, parallel


bfloat16_serial, bfloat16_parallel = _build(True)
float32_serial, float32_parallel = _build(False)
