"""The layers of a Llama-like target or drafter, run over rows of several requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aurora_core.kernels import dispatch
from aurora_core.kernels.activations import silu_multiply
from aurora_core.kernels.attention import (
    addresses,
    attend,
    attention_scratch,
    branch_array,
    rotate_and_store,
)
from aurora_core.kernels.linear import linear
from aurora_core.kernels.normalization import rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Matrices share one dtype; vectors are float32 on CPU."""

    input_norm: Tensor
    """[D]"""
    qkv: Tensor
    """[(heads + 2 * kv_heads) * d, D], queries, then keys, then values."""
    qkv_bias: Tensor | None
    """[(heads + 2 * kv_heads) * d] or None."""
    query_norm: Tensor | None
    """[d], a per-head norm as in Qwen3, or None."""
    key_norm: Tensor | None
    output: Tensor
    """[D, heads * d]"""
    post_norm: Tensor
    """[D]"""
    gate_up: Tensor
    """[2 * F, D], gate first."""
    down: Tensor
    """[D, F]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """Dimensions that the weights alone do not tell."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """Where each row of a pass belongs. All int64 [R], on the weights' device."""

    position: Tensor
    """Rotary position."""
    owner: Tensor
    """Index of the request's cache."""
    slot: Tensor
    """Cache entry that the row writes."""
    length: Tensor
    """Cache entries that the row sees, its own included."""
    branch: Tensor | None = None
    """int64 [R, A], as in `attend`; None when no row belongs to a tree."""


class Decoder:
    """Runs a stack of decoder layers with the compiled kernels, or with torch operators."""

    def __init__(
        self, layers: Sequence[LayerWeights], shape: DecoderShape, cosine: Tensor, sine: Tensor
    ) -> None:
        """Keep references to the weights.

        Args:
            layers: in order.
            shape: dimensions.
            cosine: float32 [P, d / 2], a row per position.
            sine: likewise.
        """
        self.layers, self.shape = list(layers), shape
        self.cosine, self.sine = cosine.contiguous(), sine.contiguous()
        first = self.layers[0].qkv
        sizes = (shape.hidden_size, shape.intermediate_size, shape.head_dim)
        self._fused = dispatch.use_compiled(first) and not any(
            size % dispatch.NUM_LANES for size in sizes
        )
        self._bfloat16 = first.dtype is torch.bfloat16
        if self._fused:
            self._table = np.array([self._addresses(layer) for layer in layers], dtype=np.uint64)

    def run(
        self,
        hidden: Tensor,
        rows: RowPlan,
        keys: Sequence[Sequence[Tensor]],
        values: Sequence[Sequence[Tensor]],
        capture: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor]:
        """Pass rows through all layers, writing their keys and values into the caches.

        Args:
            hidden: [R, D]; overwritten.
            rows: where each row belongs.
            keys: per layer, per request: [capacity, kv_heads, d], contiguous.
            values: likewise.
            capture: layers whose *entering* hidden states are wanted; the number of layers means
                the last layer's output.

        Returns:
            (hidden [R, D] after the last layer, captured [R, len(capture) * D])
        """
        captured = hidden.new_empty((hidden.shape[0], len(capture) * self.shape.hidden_size))
        if self._fused:
            self._run_compiled(
                hidden,
                rows,
                np.stack([addresses(layer) for layer in keys]),
                np.stack([addresses(layer) for layer in values]),
                capture,
                captured,
            )
            return hidden, captured
        size = self.shape.hidden_size
        for index, layer in enumerate([*self.layers, None]):
            for column, wanted in enumerate(capture):
                if wanted == index:
                    captured[:, column * size : (column + 1) * size] = hidden
            if layer is not None:
                hidden = self._run_layer(hidden, layer, rows, keys[index], values[index])
        return hidden, captured

    def run_addressed(
        self,
        hidden: Tensor,
        rows: RowPlan,
        keys: np.ndarray,
        values: np.ndarray,
        capture: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor]:
        """Like `run` with caches given as addresses, uint64 [layers, requests]; compiled only."""
        captured = hidden.new_empty((hidden.shape[0], len(capture) * self.shape.hidden_size))
        self._run_compiled(hidden, rows, keys, values, capture, captured)
        return hidden, captured

    @property
    def addressable(self) -> bool:
        """Whether `run_addressed` can be used."""
        return self._fused

    def _run_compiled(
        self,
        hidden: Tensor,
        rows: RowPlan,
        keys: np.ndarray,
        values: np.ndarray,
        capture: Sequence[int],
        captured: Tensor,
    ) -> None:
        threads = dispatch.num_threads()
        shape = self.shape
        if hidden.shape[0] == 0:
            return
        from aurora_core.kernels import _decoder_cpu

        num_rows = hidden.shape[0]
        heads_width = (2 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        per_row = (
            shape.hidden_size
            + heads_width
            + shape.num_heads * shape.head_dim
            + 3 * shape.intermediate_size
        )
        items = num_rows * shape.num_heads if threads > 1 else 1
        longest = int(rows.length.max())
        scratch = torch.empty(num_rows * per_row + items * attention_scratch(longest))
        _decoder_cpu.stack(
            hidden.data_ptr(),
            self._table,
            keys,
            values,
            rows.position.numpy(),
            rows.owner.numpy(),
            rows.slot.numpy(),
            rows.length.numpy(),
            branch_array(rows.branch, num_rows),
            self.cosine.data_ptr(),
            self.sine.data_ptr(),
            np.array(capture, dtype=np.int64),
            captured.numpy(),
            shape.hidden_size,
            shape.intermediate_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.rms_norm_epsilon,
            self._bfloat16,
            threads,
            scratch.data_ptr(),
        )

    def _run_layer(
        self,
        hidden: Tensor,
        layer: LayerWeights,
        rows: RowPlan,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
    ) -> Tensor:
        shape = self.shape
        normed = rms_norm(hidden, layer.input_norm, shape.rms_norm_epsilon)
        qkv = linear(normed, layer.qkv, layer.qkv_bias)
        if layer.query_norm is not None and layer.key_norm is not None:
            heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
            split = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
            query, key, value = heads.split(split, dim=1)
            query = _norm_heads(query, layer.query_norm, shape.rms_norm_epsilon)
            key = _norm_heads(key, layer.key_norm, shape.rms_norm_epsilon)
            qkv = torch.cat((query, key, value), dim=1).flatten(1)
        query = rotate_and_store(
            qkv,
            cosine=self.cosine,
            sine=self.sine,
            position=rows.position,
            owner=rows.owner,
            slot=rows.slot,
            keys=keys,
            values=values,
            num_heads=shape.num_heads,
        )
        scale = shape.head_dim**-0.5
        mixed = attend(query, keys, values, rows.owner, rows.length, scale, branch=rows.branch)
        hidden = hidden + linear(mixed, layer.output)
        normed = rms_norm(hidden, layer.post_norm, shape.rms_norm_epsilon)
        return hidden + linear(silu_multiply(linear(normed, layer.gate_up)), layer.down)

    @staticmethod
    def _addresses(layer: LayerWeights) -> list[int]:
        ordered = (
            layer.input_norm, layer.qkv, layer.qkv_bias, layer.query_norm, layer.key_norm,
            layer.output, layer.post_norm, layer.gate_up, layer.down,
        )  # fmt: skip
        for tensor in ordered:
            assert tensor is None or tensor.is_contiguous()
        return [0 if tensor is None else tensor.data_ptr() for tensor in ordered]


def _norm_heads(heads: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return rms_norm(heads.reshape(-1, heads.shape[-1]), weight, epsilon).view(heads.shape)
