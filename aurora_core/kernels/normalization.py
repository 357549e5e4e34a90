"""Root mean square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from aurora_core.kernels import dispatch


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return `x / rms(x) * weight` over the last dimension.

    Args:
        x: [R, D]; float32 on CPU.
        weight: [D], x's dtype.
        epsilon: added to the mean square.
    """
    if not dispatch.use_compiled(x) or x.shape[1] % dispatch.NUM_LANES:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, epsilon)
    from aurora_core.kernels import _elementwise_cpu

    x = x.contiguous()
    y = torch.empty_like(x)
    _elementwise_cpu.rms_norm(
        x.data_ptr(), weight.data_ptr(), epsilon, y.data_ptr(), x.shape[0], x.shape[1]
    )
    return y
