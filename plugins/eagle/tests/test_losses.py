"""Objectives against slow, obvious references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aurora_eagle.losses import OBJECTIVES, forward_kl, lk_hybrid


@pytest.fixture
def rows() -> tuple[Tensor, Tensor, Tensor]:
    """Return (logits, target probabilities that sum to less than 1, their entropies)."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(6, 11, generator=generator)
    target_probs = (3 * torch.randn(6, 14, generator=generator)).softmax(-1)[:, :11]
    target_probs[5] = 0.0
    return logits, target_probs, torch.special.entr(target_probs).sum(-1)


def test_forward_kl_is_the_sum_over_the_draft_vocabulary(
    rows: tuple[Tensor, Tensor, Tensor],
) -> None:
    logits, target_probs, entropy = rows
    value = forward_kl(logits, target_probs, entropy).value
    for row in range(len(logits)):
        draft_probs = logits[row].exp() / logits[row].exp().sum()
        terms = [
            float(t) * float(torch.log(t / d))
            for t, d in zip(target_probs[row], draft_probs, strict=True)
            if t > 0
        ]
        assert float(value[row]) == pytest.approx(sum(terms), abs=1e-5)


def test_lk_hybrid_blends_kl_and_rejection_rate(rows: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target_probs, entropy = rows
    divergence = forward_kl(logits, target_probs, entropy).value
    value = lk_hybrid(logits, target_probs, entropy).value
    for row in range(len(logits)):
        draft_probs = logits[row].softmax(-1)
        overlap = sum(
            min(float(t), float(d)) for t, d in zip(target_probs[row], draft_probs, strict=True)
        )
        blend = 2.718281828459045 ** (-3 * overlap)
        expected = blend * float(divergence[row]) + (1 - blend) * (1 - overlap)
        assert float(value[row]) == pytest.approx(expected, abs=1e-5)


def test_forward_kl_gradient_is_that_of_autograd(rows: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target_probs, entropy = rows
    logits.requires_grad_()
    reference = (-target_probs * logits.log_softmax(-1)).sum()
    (expected,) = torch.autograd.grad(reference, logits)
    gradient = forward_kl(logits.detach(), target_probs, entropy).gradient
    torch.testing.assert_close(gradient, expected)


def test_lk_hybrid_gradient_is_that_of_autograd_with_a_constant_blend(
    rows: tuple[Tensor, Tensor, Tensor],
) -> None:
    logits, target_probs, entropy = rows
    logits.requires_grad_()
    overlap = torch.minimum(logits.softmax(-1), target_probs).sum(-1)
    blend = torch.exp(-3 * overlap).detach()
    cross_entropy = (-target_probs * logits.log_softmax(-1)).sum(-1)
    (expected,) = torch.autograd.grad(
        (blend * cross_entropy + (1 - blend) * (1 - overlap)).sum(), logits
    )
    gradient = lk_hybrid(logits.detach(), target_probs, entropy).gradient
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_equal_distributions_have_loss_and_gradient_zero(name: str) -> None:
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(1))
    target_probs = logits.softmax(-1)
    loss = OBJECTIVES[name](logits, target_probs, torch.special.entr(target_probs).sum(-1))
    torch.testing.assert_close(loss.value, torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(loss.gradient, torch.zeros(3, 9), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_best_is_the_largest_logit(name: str, rows: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target_probs, entropy = rows
    assert torch.equal(OBJECTIVES[name](logits, target_probs, entropy).best, logits.amax(-1))
