"""Matrices that are copied into huge pages."""

from __future__ import annotations

import mmap
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from aurora_backend_torch.weight_memory import HUGE_PAGE, WeightMemory

LARGEST = 33 << 20
"""Bytes: more than a chunk holds."""


def test_copies_are_equal_aligned_and_do_not_touch_each_other() -> None:
    memory = WeightMemory()
    torch.manual_seed(0)
    tensors = [
        torch.randn(7, 5).to(torch.bfloat16),
        torch.randn(300, 576),
        torch.randn(64, 33).t(),
        torch.zeros(LARGEST // 4),
        *(torch.randn(1024, 1024) for _ in range(9)),
        torch.empty(0, 4),
    ]
    copies = [memory.put(tensor) for tensor in tensors]
    for tensor, copy in zip(tensors, copies, strict=True):
        assert copy.dtype == tensor.dtype and copy.is_contiguous()
        assert torch.equal(copy, tensor)
        assert copy.data_ptr() % 64 == 0 or not copy.numel()
    spans = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in copies if one.numel())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_copy_outlives_what_it_was_copied_from_and_where() -> None:
    memory = WeightMemory()
    copy = memory.put(torch.full((1000,), 3.0))
    memory.put(torch.zeros(LARGEST, dtype=torch.uint8))
    del memory
    assert copy.tolist() == [3.0] * 1000


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux alone has huge pages to ask")
def test_huge_pages_are_asked_for() -> None:
    maps = Path("/proc/self/smaps").read_text("utf-8")
    if "VmFlags" not in maps or not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no transparent huge pages, or does not tell")
    copy = WeightMemory().put(torch.zeros(LARGEST, dtype=torch.uint8))
    assert copy.data_ptr() % HUGE_PAGE == 0
    assert "hg" in flags_at(copy.data_ptr())


def flags_at(address: int) -> list[str]:
    """Return the flags of the mapping that an address lies in, as Linux calls them."""
    inside = False
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            first, end = (int(edge, 16) for edge in words[0].split("-"))
            inside = first <= address < end
        elif inside and words[0] == "VmFlags:":
            return words[1:]
    raise AssertionError("no mapping holds the address")
