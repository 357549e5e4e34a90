"""Numba drivers that cut a matrix product into register tiles. Imported on first use."""

from __future__ import annotations

from numba import njit, prange

from aurora_core.kernels.microkernel import sweep_bfloat16, sweep_float32

PANEL = 48
"""Weight rows kept in the first-level cache while all activation rows pass over them."""

_SIGNATURE = "void(uint64, uint64, uint64, int64, int64, int64, boolean, int64)"


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _columns(weight, x, y, m, num_columns, depth, bfloat16, first, last):  # type: ignore[no-untyped-def]
    """Compute y[:, first:last], weight rows streaming once."""
    panel = first
    while panel < last:
        stop = min(panel + PANEL, last)
        row = 0
        while row < m:
            rest = m - row
            # 7 and 8 rows go as 4 + 3 and 4 + 4: a lone seventh row would waste a pass.
            take = rest if rest <= 6 else (4 if rest <= 8 else 6)
            xr, yr = x + row * depth * 4, y + row * num_columns * 4
            if bfloat16:
                sweep_bfloat16(take, weight, xr, yr, panel, stop, num_columns, depth)
            else:
                sweep_float32(take, weight, xr, yr, panel, stop, num_columns, depth)
            row += take
        panel = stop


@njit(_SIGNATURE, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def product_serial(weight, x, y, m, num_columns, depth, bfloat16, threads):  # type: ignore[no-untyped-def]
    """y [m, num_columns] = x [m, depth] @ weight.T; addresses, float32 but for the weight."""
    _columns(weight, x, y, m, num_columns, depth, bfloat16, 0, num_columns)


@njit(_SIGNATURE, nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def product_parallel(weight, x, y, m, num_columns, depth, bfloat16, threads):  # type: ignore[no-untyped-def]
    """The same with the columns shared among threads."""
    share = (num_columns // threads + PANEL - 1) // PANEL * PANEL
    for part in prange(threads):
        first = min(part * share, num_columns)
        last = num_columns if part == threads - 1 else min(first + share, num_columns)
        _columns(weight, x, y, m, num_columns, depth, bfloat16, first, last)
