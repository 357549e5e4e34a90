from __future__ import annotations

import pytest
import torch
from torch import nn

from aurora_core.learner.averaging import WeightAverage


def test_the_average_follows_the_formula() -> None:
    module = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
    average = WeightAverage(module, decay=0.3)
    expected = 1.0
    for update in range(5):
        with torch.no_grad():
            module.weight.add_(1.0)
        average.update(module)
        decay = min(0.3, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * float(module.weight.detach())
    with average.applied_to(module):
        assert abs(float(module.weight.detach()) - expected) < 1e-5


def test_the_module_gets_its_own_weights_back_even_after_an_error() -> None:
    module = nn.Linear(2, 2)
    start = module.weight.detach().clone()
    average = WeightAverage(module, decay=0.5)
    with torch.no_grad():
        module.weight.add_(1.0)
    own = module.weight.detach().clone()
    with pytest.raises(OSError, match="disk"), average.applied_to(module):
        assert torch.equal(module.weight, start)
        raise OSError("disk")
    assert torch.equal(module.weight, own)


def test_frozen_parameters_are_not_averaged() -> None:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    average = WeightAverage(module, decay=0.5)
    with torch.no_grad():
        module.bias.fill_(7.0)
    with average.applied_to(module):
        assert module.bias.tolist() == [7.0, 7.0]


def test_a_restored_average_goes_on_alike() -> None:
    module = nn.Linear(3, 3)
    first = WeightAverage(module, decay=0.9)
    for _ in range(3):
        with torch.no_grad():
            module.weight.add_(torch.randn(3, 3))
        first.update(module)
    second = WeightAverage(module, decay=0.9)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        module.weight.add_(1.0)
    averages = []
    for average in (first, second):
        average.update(module)
        with average.applied_to(module):
            averages.append(module.weight.detach().clone())
    assert torch.equal(*averages)
