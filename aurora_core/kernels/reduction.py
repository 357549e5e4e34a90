"""Argmax and logsumexp over a vocabulary in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from aurora_core.kernels import dispatch


def argmax_logsumexp(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first index of each row's maximum (int64 [R]) and its logsumexp (float32 [R])."""
    num_rows, width = logits.shape
    if not dispatch.use_compiled(logits) or width % dispatch.NUM_LANES:
        return logits.argmax(-1), logits.float().logsumexp(-1)
    from aurora_core.kernels import _elementwise_cpu

    logits = logits.contiguous()
    best = torch.empty(num_rows, dtype=torch.int64)
    total = torch.empty(num_rows, dtype=torch.float32)
    scratch = torch.empty(width, dtype=torch.float32)
    _elementwise_cpu.argmax_logsumexp(
        logits.data_ptr(), num_rows, width, best.numpy(), total.numpy(), scratch.data_ptr()
    )
    return best, total
