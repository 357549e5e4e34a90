"""Memory of the matrices on a CPU: huge pages, where the system has them.

A step of a small batch reads every matrix once, so its time is that of the memory. In pages of
4 KiB, each of which has to be looked up and lies wherever there was room, it takes longer, and a
percent or more differently in every process.
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
"""Bytes on x86 and mostly on ARM; where they are larger, the chunks hold fewer of them."""
_CHUNK = 32 << 20
_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""
_CAN_ADVISE = hasattr(mmap, "MADV_HUGEPAGE")
"""Linux alone."""


class WeightMemory:
    """Copies matrices into chunks of memory for which huge pages are asked, one after the other.

    A tensor that was put here keeps its chunk alive. Elsewhere than on Linux nothing is copied.
    """

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def put(self, tensor: Tensor) -> Tensor:
        """Return an equal, contiguous tensor of the same dtype.

        Args:
            tensor: on the CPU, of any shape.
        """
        if not _CAN_ADVISE or not tensor.numel():
            return tensor.contiguous()
        size = tensor.numel() * tensor.element_size()
        if self._used + size > len(self._chunk):
            self._chunk, self._used = _allocate(max(size, _CHUNK)), 0
        place = self._chunk[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _allocate(size: int) -> Tensor:
    """Return uint8 [size or more] that begins at the edge of a huge page."""
    whole = -(-size // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, whole + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them: ordinary pages do as well
        memory.madvise(mmap.MADV_HUGEPAGE)
    chunk = torch.frombuffer(memory, dtype=torch.uint8)
    first = -chunk.data_ptr() % HUGE_PAGE
    return chunk[first : first + whole]
