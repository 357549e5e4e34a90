"""Muon for matrices and AdamW for everything else, as one optimizer.

Muon (Keller Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024) replaces the
momentum of a matrix by a nearby matrix with orthonormal rows or columns, so that every direction
moves equally far. `torch.optim.Muon` does the same but always computes in bfloat16, which took 30
times as long as float32 on a CPU without bfloat16 instructions: 5.8 s for one 576 x 1536 matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic a x + b x^3 + c x^5; chosen by its author for the largest slope at zero."""
_MIN_BLOCKED_SIZE = 128
_NOT_HIDDEN = ("embed", "lm_head")


class MuonWithAdamW(torch.optim.Optimizer):
    """One optimizer with two parameter groups, so that one scheduler and one checkpoint do.

    Args:
        matrices: parameters with two dimensions, for Muon.
        others: the rest, for AdamW.
        matrix_learning_rate: step size of Muon; independent of the scale of the loss.
        learning_rate: of AdamW.
        momentum: of Muon, in Nesterov's form.
        betas: of AdamW.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        *,
        matrix_learning_rate: float,
        learning_rate: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
    ) -> None:
        groups: list[dict[str, Any]] = [
            {"params": list(matrices), "lr": matrix_learning_rate, "momentum": momentum},
            {"params": list(others), "lr": learning_rate},
        ]
        super().__init__(groups, {})
        self._adamw = torch.optim.AdamW([self.param_groups[1]], betas=betas, weight_decay=0.0)
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Let AdamW work on its group and its part of the state, which are also ours."""
        self._adamw.param_groups = self.param_groups[1:]
        self._adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        matrices = self.param_groups[0]
        for parameter in matrices["params"]:
            if parameter.grad is not None:
                self._step_matrix(parameter, matrices["lr"], matrices["momentum"])
        self._adamw.step()
        return loss

    def _step_matrix(self, parameter: nn.Parameter, lr: float, momentum: float) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        update = orthogonalize(gradient.lerp(state["momentum_buffer"], momentum))
        # A tall matrix gets longer steps, so that its outputs change as much as a wide one's.
        num_rows, num_columns = parameter.shape
        parameter.add_(update, alpha=-lr * max(1.0, num_rows / num_columns) ** 0.5)


def orthogonalize(matrix: Tensor, *, num_iterations: int = 5) -> Tensor:
    """Return U S V^T for a matrix U D V^T, with the entries of S between about 0.7 and 1.2.

    Newton-Schulz iteration of a quintic; it stops short of the exact U V^T, which does not
    matter for training. Float32 on CPU, bfloat16 elsewhere, returned in the dtype given.

    Args:
        matrix: floating point [rows, columns]; zeros give zeros.
    """
    result = matrix.float() if matrix.device.type == "cpu" else matrix.bfloat16()
    if is_tall := matrix.shape[0] > matrix.shape[1]:
        result = result.T
    result = result / result.norm().clamp(min=1e-7)
    # Far from square, it is cheaper to square once and to iterate on the small square. Squaring
    # loses half the digits of small singular values, which bfloat16 does not have.
    if result.dtype == torch.float32 and 2 * result.shape[1] >= 3 * result.shape[0]:
        gram = _symmetric_product(result, result.T)
        result = _polynomial_of_gram(gram, num_iterations) @ result
    else:
        for _ in range(num_iterations):
            result = _polynomial(_symmetric_product(result, result.T)) @ result
    orthogonal: Tensor = (result.T if is_tall else result).to(matrix.dtype)
    return orthogonal


def _polynomial(gram: Tensor) -> Tensor:
    """Return a I + b G + c G^2; times a matrix X with G = X X^T it is one iteration."""
    a, b, c = _COEFFICIENTS
    polynomial = torch.add(b * gram, _symmetric_product(gram, gram), alpha=c)
    polynomial.diagonal().add_(a)
    return polynomial


def _polynomial_of_gram(gram: Tensor, num_iterations: int) -> Tensor:
    """Return the product of the factors of all iterations, which depends on the Gram matrix alone.

    All factors are polynomials of one symmetric matrix, so they are symmetric and commute.
    """
    product = factor = _polynomial(gram)
    for _ in range(num_iterations - 1):
        gram = _symmetric_product(factor, _symmetric_product(factor, gram))
        factor = _polynomial(gram)
        product = _symmetric_product(product, factor)
    return product


def _symmetric_product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, of which the caller knows that it is symmetric.

    On CPU 5/8 of it are computed and the rest is mirrored.
    """
    size = len(left)
    if left.device.type != "cpu" or size < _MIN_BLOCKED_SIZE:
        return left @ right
    product = left.new_empty(size, size)
    block = -(-size // 4)
    for start in range(0, size, block):
        stop = start + block
        product[start:stop, start:] = left[start:stop] @ right[:, start:]
        product[stop:, start:stop] = product[start:stop, stop:].T
    return product


def split_parameters(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable parameters of a drafter as (matrices for Muon, others for AdamW).

    Embeddings and output heads, told by `embed` or `lm_head` in their name, go to AdamW: each of
    their rows belongs to one token, and most rows have no gradient in a step.
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            hidden = parameter.ndim == 2 and not any(part in name for part in _NOT_HIDDEN)
            (matrices if hidden else others).append(parameter)
    return matrices, others
