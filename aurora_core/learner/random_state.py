"""The state of every random number generator, as plain data that loads without pickle."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Return the state of torch, CUDA, NumPy and Python."""
    _, keys, *position = np.random.get_state()
    version, internal, next_gaussian = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), *position],
        "python": [version, list(internal), next_gaussian],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Continue every generator; those of devices that are not there now are left out."""
    torch.set_rng_state(state["torch"])
    for device, generator in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(generator, device)
    keys, *position = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *position))
    version, internal, next_gaussian = state["python"]
    random.setstate((version, tuple(internal), next_gaussian))
