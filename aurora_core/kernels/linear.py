"""Row-invariant matrix product with bfloat16 or float32 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from aurora_core.kernels import dispatch

PARALLEL_ELEMENTS = 200_000
"""Below this many weights, waking a second thread costs more than it brings."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias`.

    Args:
        x: float32 [M, K] on CPU; the weight's dtype elsewhere.
        weight: bfloat16 or float32 [N, K], contiguous.
        bias: [N] or None.

    Returns:
        [M, N], float32 on CPU and of x's dtype elsewhere. On CPU, row m depends on x[m] and weight
        alone, to the last bit.
    """
    if not dispatch.use_compiled(weight) or x.shape[1] % dispatch.NUM_LANES:
        y = torch.nn.functional.linear(x, weight.to(x.dtype))
    else:
        y = _compiled(x, weight)
    return y if bias is None else y + bias


def _compiled(x: Tensor, weight: Tensor) -> Tensor:
    from aurora_core.kernels import _linear_cpu

    x = x.contiguous()
    m, depth = x.shape
    n = weight.shape[0]
    y = torch.empty((m, n), dtype=torch.float32)
    if m == 0:
        return y
    threads = dispatch.num_threads() if n * depth >= PARALLEL_ELEMENTS else 1
    run = _linear_cpu.product_parallel if threads > 1 else _linear_cpu.product_serial
    bfloat16 = weight.dtype is torch.bfloat16
    run(weight.data_ptr(), x.data_ptr(), y.data_ptr(), m, n, depth, bfloat16, threads)
    return y
