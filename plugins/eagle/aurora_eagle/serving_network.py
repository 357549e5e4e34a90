"""The draft network as it serves: frozen weights, stepped row by row through the kernels.

Shape legend:
    R  rows, of any requests    H  hidden size    D  draft vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_core.kernels import (
    argmax_logsumexp,
    attend,
    linear,
    rms_norm,
    rotate_and_store,
    silu_multiply,
)
from aurora_eagle.draft_cache import Cache
from aurora_eagle.model import Eagle3Network, rotary_table


@dataclass(slots=True)
class Places:
    """Where rows belong: int64 [R] each."""

    owner: Tensor
    """Index into the caches of the call."""
    position: Tensor
    """Position in the text."""
    slot: Tensor
    """Entry of the cache."""

    def __getitem__(self, rows: Tensor) -> Places:
        return Places(self.owner[rows], self.position[rows], self.slot[rows])


class ServingNetwork:
    """A copy of trained weights in the form that drafting reads them.

    Args:
        network: trained weights; may be changed afterwards.
        dtype: of the matrices; activations are float32 on CPU and of this dtype elsewhere.
        device: where to draft.
    """

    def __init__(self, network: Eagle3Network, *, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = network.shape
        self.device = device
        self._activation = torch.float32 if device.type == "cpu" else dtype

        def matrix(*parts: Tensor) -> Tensor:
            return torch.cat([part.detach() for part in parts]).to(device, dtype).contiguous()

        def vector(part: Tensor) -> Tensor:
            return part.detach().to(device, self._activation, copy=True)

        middle, attention = network.midlayer, network.midlayer.self_attn
        self._fc = matrix(network.fc.weight)
        self._qkv = matrix(
            attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight
        )
        self._key_value = self._qkv[self.shape.num_heads * self.shape.head_dim :]
        self._output = matrix(attention.o_proj.weight)
        self._gate_up = matrix(middle.mlp.gate_proj.weight, middle.mlp.up_proj.weight)
        self._down = matrix(middle.mlp.down_proj.weight)
        self._head = matrix(network.lm_head.weight)
        self._input_norm = vector(middle.input_layernorm.weight)
        self._hidden_norm = vector(middle.hidden_norm.weight)
        self._post_norm = vector(middle.post_attention_layernorm.weight)
        self._norm = vector(network.norm.weight)
        # The target's own, which never changes: shared, not copied.
        self._embed_tokens = network.embed_tokens.to(device)
        self.target_ids = network.target_ids.to(device)
        """int64 [D]. What each entry of the draft vocabulary is to the target."""
        self._cosine, self._sine = self._rotary(1024)

    def allocate(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of an empty cache, [capacity, kv_heads, head_dim] each."""
        size = (capacity, self.shape.num_kv_heads, self.shape.head_dim)
        keys, values = torch.zeros((2, *size), dtype=self._activation, device=self.device).unbind()
        return keys, values

    def cover(self, num_positions: int) -> None:
        """Make sure that positions up to this one, exclusive, can be stepped."""
        if num_positions > len(self._cosine):
            self._cosine, self._sine = self._rotary(max(num_positions, 2 * len(self._cosine)))

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        """Return what the target's rows are to the drafter, [R, H]."""
        return linear(aux_hidden_states.to(self.device, self._activation), self._fc)

    def read(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """Return what the attention's projections read, [R, 2 * H].

        Args:
            token_ids: int64 [R]. Target ids of the *next* token of each row.
            hidden: [R, H]. The target's fused rows, or the network's output at the step before.
        """
        embedded = self._embed_tokens[token_ids].to(self._activation)
        epsilon = self.shape.rms_norm_eps
        return torch.cat(
            (
                rms_norm(embedded, self._input_norm, epsilon),
                rms_norm(hidden, self._hidden_norm, epsilon),
            ),
            -1,
        )

    def store(self, x: Tensor, places: Places, caches: Sequence[Cache]) -> None:
        """Store keys and values of rows whose output nobody needs; `x` is what `read` returned."""
        self._rotate_and_store(linear(x, self._key_value), places, caches, num_heads=0)

    def step(
        self,
        hidden: Tensor,
        x: Tensor,
        places: Places,
        caches: Sequence[Cache],
        *,
        length: Tensor,
        branch: Tensor | None = None,
    ) -> Tensor:
        """Store some rows, run the layer on them, and return its output [R, H].

        Args:
            hidden: as given to `read`.
            x: what `read` returned.
            places: of the rows.
            caches: of the call.
            length: int64 [R]. Entries of its cache that each row sees, itself included.
            branch: int64 [R, A]. The last A of these, for rows of a tree; see `kernels.attend`.
        """
        num_heads = self.shape.num_heads
        query = self._rotate_and_store(linear(x, self._qkv), places, caches, num_heads=num_heads)
        mixed = attend(
            query,
            [cache.keys for cache in caches],
            [cache.values for cache in caches],
            places.owner,
            length,
            self.shape.head_dim**-0.5,
            branch=branch,
        )
        if self.shape.norm_before_residual:
            hidden = x[:, self.shape.hidden_size :]
        hidden = hidden + linear(mixed, self._output)
        normed = rms_norm(hidden, self._post_norm, self.shape.rms_norm_eps)
        gated = silu_multiply(linear(normed, self._gate_up))
        return hidden + linear(gated, self._down)

    def top(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return each row's best tokens, best first, and their log-probabilities.

        Args:
            hidden: [R, H]
            count: tokens per row; a smaller draft vocabulary is returned whole.

        Returns:
            (target ids, log-probabilities): int64 and float32 [R, count].
        """
        logits = self.logits(hidden)
        _, logsumexp = argmax_logsumexp(logits)
        # A tenth of what the head costs at most, so no kernel of its own: 0.08 ms for a row of
        # 49,152 logits.
        best, index = logits.topk(min(count, logits.shape[1]), -1)
        return self.target_ids[index], best.float() - logsumexp[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [R, D]."""
        return linear(rms_norm(hidden, self._norm, self.shape.rms_norm_eps), self._head)

    def _rotate_and_store(
        self, projected: Tensor, places: Places, caches: Sequence[Cache], *, num_heads: int
    ) -> Tensor:
        """Store keys and values of some rows and return their queries."""
        return rotate_and_store(
            projected,
            cosine=self._cosine,
            sine=self._sine,
            position=places.position,
            owner=places.owner,
            slot=places.slot,
            keys=[cache.keys for cache in caches],
            values=[cache.values for cache in caches],
            num_heads=num_heads,
        )

    def _rotary(self, num_positions: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(num_positions, device=self.device)
        cosine, sine = rotary_table(self.shape, positions)
        return cosine.contiguous(), sine.contiguous()
