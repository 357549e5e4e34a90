"""The target model as the engine runs it: rows in, hidden states, logits and features out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_backend_torch.kv_cache import KVCache, gather_addresses
from aurora_backend_torch.weight_memory import WeightMemory
from aurora_core import kernels
from aurora_core.kernels import Decoder, DecoderShape, LayerWeights, RowPlan
from aurora_core.target.weights import TargetWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """One pass of the target over R rows."""

    last_hidden: Tensor
    """[R, D] after the final norm: the input of the output head."""
    aux_hidden: Tensor
    """[R, L * D] hidden states entering the captured layers."""


class TargetModel:
    """A Llama-like causal language model over caches of several requests.

    On CPU the matrices are kept in `dtype` and all arithmetic is float32, by row-invariant kernels.
    On other devices activations have the dtype of the matrices.
    """

    def __init__(
        self, weights: TargetWeights, *, dtype: torch.dtype, device: torch.device, max_context: int
    ) -> None:
        """Load the weights.

        Args:
            weights: the target's tensors.
            dtype: of the matrices, bfloat16 or float32.
            device: where to run.
            max_context: positions to prepare rotary tables for.
        """
        self.dtype, self.device = dtype, device
        self._memory = WeightMemory()
        self.compute_dtype = torch.float32 if device.type == "cpu" else dtype
        self.num_layers = weights.num_layers
        self.num_kv_heads, self.head_dim = weights.num_key_value_heads, weights.head_dim
        self.vocab_size = weights.vocab_size
        self.epsilon = weights.rms_norm_eps
        self.embed_tokens = self._matrix(weights.embed_tokens)
        tied = weights.lm_head is weights.embed_tokens
        self.lm_head = self.embed_tokens if tied else self._matrix(weights.lm_head)
        self.final_norm = self._vector(weights.final_norm)
        self._decoder = Decoder(
            [self._layer(weights.layer(index)) for index in range(weights.num_layers)],
            DecoderShape(
                hidden_size=weights.hidden_size,
                intermediate_size=weights.intermediate_size,
                num_heads=weights.num_attention_heads,
                num_kv_heads=weights.num_key_value_heads,
                head_dim=weights.head_dim,
                rms_norm_epsilon=weights.rms_norm_eps,
            ),
            *(table.to(device) for table in _rotary_tables(weights, max_context)),
        )

    def new_cache(self, capacity: int) -> KVCache:
        """Return an empty cache for one request; memory is touched only as it fills."""
        return KVCache(
            num_layers=self.num_layers,
            capacity=capacity,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=self.compute_dtype,
            device=self.device,
        )

    def forward(
        self,
        token_ids: Tensor,
        rows: RowPlan,
        caches: Sequence[KVCache],
        aux_layers: Sequence[int] = (),
    ) -> TargetRows:
        """Run rows of several requests, each over what its plan lets it see of its own cache.

        Args:
            token_ids: int64 [R].
            rows: where each row belongs; owners index `caches`.
            caches: one per request.
            aux_layers: layers whose entering hidden states are wanted.
        """
        hidden = self.embed_tokens[token_ids].to(self.compute_dtype)
        if self._decoder.addressable:
            addresses = gather_addresses(caches)
            hidden, aux = self._decoder.run_addressed(hidden, rows, *addresses, aux_layers)
        else:
            keys = [[cache.keys[layer] for cache in caches] for layer in range(self.num_layers)]
            values = [[cache.values[layer] for cache in caches] for layer in range(self.num_layers)]
            hidden, aux = self._decoder.run(hidden, rows, keys, values, aux_layers)
        last_hidden = kernels.rms_norm(hidden, self.final_norm, self.epsilon)
        return TargetRows(last_hidden=last_hidden, aux_hidden=aux)

    def logits(self, last_hidden: Tensor) -> Tensor:
        """Return [R, V] logits for rows of `TargetRows.last_hidden`."""
        return kernels.linear(last_hidden, self.lm_head)

    def warm_up(self) -> None:
        """Run one row, so that compiling the kernels does not fall into the first request."""
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        plan = RowPlan(position=zero, owner=zero, slot=zero, length=zero + 1)
        rows = self.forward(zero, plan, [self.new_cache(1)])
        kernels.argmax_logsumexp(self.logits(rows.last_hidden))

    def _matrix(self, tensor: Tensor) -> Tensor:
        matrix = tensor.to(device=self.device, dtype=self.dtype)
        return self._memory.put(matrix) if matrix.device.type == "cpu" else matrix.contiguous()

    def _vector(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self.device, dtype=self.compute_dtype).contiguous()

    def _layer(self, tensors: dict[str, Tensor]) -> LayerWeights:
        def joined(*names: str) -> Tensor:
            return torch.cat([tensors[name] for name in names])

        attention = [f"self_attn.{part}_proj" for part in "qkv"]
        has_bias = f"{attention[0]}.bias" in tensors
        has_norm = "self_attn.q_norm.weight" in tensors
        return LayerWeights(
            input_norm=self._vector(tensors["input_layernorm.weight"]),
            qkv=self._matrix(joined(*(f"{name}.weight" for name in attention))),
            qkv_bias=self._vector(joined(*(f"{name}.bias" for name in attention)))
            if has_bias
            else None,
            query_norm=self._vector(tensors["self_attn.q_norm.weight"]) if has_norm else None,
            key_norm=self._vector(tensors["self_attn.k_norm.weight"]) if has_norm else None,
            output=self._matrix(tensors["self_attn.o_proj.weight"]),
            post_norm=self._vector(tensors["post_attention_layernorm.weight"]),
            gate_up=self._matrix(joined("mlp.gate_proj.weight", "mlp.up_proj.weight")),
            down=self._matrix(tensors["mlp.down_proj.weight"]),
        )


def _rotary_tables(weights: TargetWeights, num_positions: int) -> tuple[Tensor, Tensor]:
    frequencies, scaling = weights.rope_inverse_frequencies()
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies[None].float()
    return angles.cos() * scaling, angles.sin() * scaling
