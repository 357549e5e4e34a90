"""Gated activation of Llama-like feed-forward layers."""

from __future__ import annotations

import torch
from torch import Tensor

from aurora_core.kernels import dispatch


def silu_multiply(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up` for `gate_up` = [R, 2 * F], gate first."""
    width = gate_up.shape[1] // 2
    if not dispatch.use_compiled(gate_up) or width % dispatch.NUM_LANES:
        return torch.nn.functional.silu(gate_up[:, :width]) * gate_up[:, width:]
    from aurora_core.kernels import _elementwise_cpu

    gate_up = gate_up.contiguous()
    y = torch.empty((gate_up.shape[0], width), dtype=torch.float32)
    _elementwise_cpu.silu_multiply(gate_up.data_ptr(), y.data_ptr(), gate_up.shape[0], width)
    return y
