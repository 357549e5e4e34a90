"""Keys and values of one request, for all layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from aurora_core.kernels import addresses


class KVCache:
    """Contiguous storage per layer. Entries above the committed length may hold rejected drafts."""

    def __init__(
        self,
        *,
        num_layers: int,
        capacity: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Reserve `capacity` entries.

        Args:
            num_layers: decoder layers.
            capacity: positions that fit, draft tokens of a step included.
            num_kv_heads: key-value heads.
            head_dim: width of a head.
            dtype: of the stored vectors.
            device: where they live.
        """
        shape = (num_layers, capacity, num_kv_heads, head_dim)
        self.capacity = capacity
        self._keys = torch.empty(shape, dtype=dtype, device=device)
        self._values = torch.empty(shape, dtype=dtype, device=device)
        self.keys = list(self._keys.unbind())
        """Per layer: [capacity, kv_heads, d]."""
        self.values = list(self._values.unbind())
        self.key_addresses = addresses(self.keys)
        """uint64 [layers]"""
        self.value_addresses = addresses(self.values)

    def move(self, entries: Sequence[int], first: int) -> None:
        """Copy entries, in all layers, to the places from `first` on; none of them lies there."""
        if entries:
            source = torch.tensor(entries, device=self._keys.device)
            for stored in (self._keys, self._values):
                stored[:, first : first + len(entries)] = stored[:, source]


def gather_addresses(caches: Sequence[KVCache]) -> tuple[np.ndarray, np.ndarray]:
    """Return the addresses of keys and of values, each uint64 [layers, requests]."""
    return (
        np.stack([cache.key_addresses for cache in caches], axis=1),
        np.stack([cache.value_addresses for cache in caches], axis=1),
    )
