from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from aurora_core.learner.muon import MuonWithAdamW, orthogonalize, split_parameters


def reference(matrix: Tensor) -> Tensor:
    """The iteration as its author writes it, in float64."""
    x = matrix.double()
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    return x.float()


@pytest.mark.parametrize(
    "shape", [(12, 12), (12, 17), (12, 60), (60, 12), (130, 131), (130, 261), (261, 130)]
)
def test_orthogonalizing_agrees_with_the_published_iteration(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    wanted = reference(matrix) if shape[0] <= shape[1] else reference(matrix.T).T
    torch.testing.assert_close(orthogonalize(matrix), wanted, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("shape", [(16, 20), (16, 64), (64, 16)])
def test_singular_values_end_near_one_and_directions_stay(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    result = orthogonalize(matrix)
    values = torch.linalg.svdvals(result)
    assert float(values.min()) > 0.6 and float(values.max()) < 1.25
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    core = left.T @ result @ right.T
    assert float((core - core.diagonal().diag()).abs().max()) < 1e-4


def test_a_zero_gradient_orthogonalizes_to_zero() -> None:
    assert not orthogonalize(torch.zeros(4, 8)).any()


def test_steps_agree_with_the_stock_optimizers() -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(24, 12), nn.Linear(12, 18))
    stock = copy.deepcopy(ours)
    optimizer = MuonWithAdamW(
        *split_parameters(ours), matrix_learning_rate=0.02, learning_rate=0.003
    )
    muon = torch.optim.Muon(
        [w for w in stock.parameters() if w.ndim == 2], lr=0.02, weight_decay=0.0
    )
    adamw = torch.optim.AdamW(
        [w for w in stock.parameters() if w.ndim == 1],
        lr=0.003,
        weight_decay=0.0,
        betas=(0.9, 0.95),
    )
    before = copy.deepcopy(list(ours.parameters()))
    inputs = torch.randn(64, 24)
    for module, optimizers in ((ours, [optimizer]), (stock, [muon, adamw])):
        for _ in range(3):
            module.zero_grad()
            module(inputs).tanh().square().sum().backward()
            for each in optimizers:
                each.step()
    for start, own, other in zip(before, ours.parameters(), stock.parameters(), strict=True):
        moved, reference_move = (own - start).detach().flatten(), (other - start).detach().flatten()
        # The stock Muon computes in bfloat16.
        assert float(nn.functional.cosine_similarity(moved, reference_move, dim=0)) > 0.995
        torch.testing.assert_close(moved.norm(), reference_move.norm(), rtol=0.02, atol=0)


def test_a_restored_optimizer_takes_the_same_steps() -> None:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    rates = {"matrix_learning_rate": 0.02, "learning_rate": 0.003}
    optimizer = MuonWithAdamW(*split_parameters(first), **rates)
    gradients = [[torch.randn_like(w) for w in first.parameters()] for _ in range(4)]

    def step(module: nn.Module, optimizer: MuonWithAdamW, gradient: list[Tensor]) -> None:
        for parameter, value in zip(module.parameters(), gradient, strict=True):
            parameter.grad = value.clone()
        optimizer.step()

    for gradient in gradients[:2]:
        step(first, optimizer, gradient)
    second = copy.deepcopy(first)
    restored = MuonWithAdamW(*split_parameters(second), **rates)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for gradient in gradients[2:]:
        step(first, optimizer, gradient)
        step(second, restored, gradient)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kept", ["matrices", "others"])
def test_either_group_may_be_empty(kept: str) -> None:
    matrices, others = split_parameters(nn.Linear(3, 2))
    if kept == "matrices":
        others = []
    else:
        matrices = []
    [parameter] = matrices + others
    parameter.grad = torch.ones_like(parameter)
    before = parameter.detach().clone()
    MuonWithAdamW(matrices, others, matrix_learning_rate=0.1, learning_rate=0.1).step()
    assert not torch.equal(parameter, before)


def test_muon_gets_hidden_matrices_and_nothing_else() -> None:
    module = nn.ModuleDict(
        {
            "embed_tokens": nn.Embedding(5, 4),
            "fc": nn.Linear(4, 4),
            "frozen": nn.Linear(4, 4).requires_grad_(False),
            "lm_head": nn.Linear(4, 5, bias=False),
        }
    )
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    matrices, others = split_parameters(module)
    assert [names[id(parameter)] for parameter in matrices] == ["fc.weight"]
    assert sorted(names[id(parameter)] for parameter in others) == [
        "embed_tokens.weight",
        "fc.bias",
        "lm_head.weight",
    ]
