"""Reading a published drafter strictly, before anything of the engine is touched.

vLLM notices neither a missing tensor nor another configuration when it loads weights again, so
a version must look exactly like the checkpoint that the engine was started with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurora_core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
_FREE_KEYS = frozenset({"aurora", "torch_dtype", "dtype", "transformers_version", "_name_or_path"})
"""Keys of config.json in which versions of one lineage may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint in memory, whole and checked."""

    tensors: Mapping[str, Tensor]
    checksum: str
    """sha256 of the very bytes that the tensors were read from."""


class CheckpointShape:
    """What every checkpoint of an engine must look like."""

    def __init__(self, folder: Path, *, target_vocab_size: int) -> None:
        """
        Args:
            folder: of the checkpoint that the engine was started with.
            target_vocab_size: ids of the target.

        Raises:
            CheckpointError: it cannot be read.
        """
        self._folder, self._vocab_size = folder, target_vocab_size
        self._config = _read_config(folder)
        self._shapes = _read_shapes(folder)

    def read(self, folder: Path) -> Checkpoint:
        """Read and check a checkpoint.

        Raises:
            CheckpointError: it is unreadable, has other tensors or another configuration than the
                first one, holds a value that is not finite, or an impossible vocabulary map.
        """
        import torch
        from safetensors import SafetensorError
        from safetensors.torch import load

        self._check_config(folder)
        try:
            data = (folder / WEIGHTS).read_bytes()
            tensors = load(data)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{WEIGHTS} of checkpoint {str(folder)!r} is missing or damaged ({error}); "
                "publish it again"
            ) from error
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if found != self._shapes:
            differing = sorted(set(found.items()) ^ set(self._shapes.items()))
            raise CheckpointError(
                f"checkpoint {str(folder)!r} has other tensors than the one that vLLM was started "
                f"with, for example {differing[0][0]!r}; start the engine anew to change shapes"
            )
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(
                    f"tensor {name!r} of checkpoint {str(folder)!r} has values that are not "
                    "finite; go back to an earlier version"
                )
        self._check_vocabulary_map(tensors, folder)
        return Checkpoint(tensors=tensors, checksum=hashlib.sha256(data).hexdigest())

    def _check_config(self, folder: Path) -> None:
        config = _read_config(folder)
        for key in sorted(config.keys() | self._config.keys()):
            if config.get(key) != self._config.get(key):
                raise CheckpointError(
                    f"{CONFIG} of checkpoint {str(folder)!r} has {key} = {config.get(key)!r}, and "
                    f"vLLM was started with {self._config.get(key)!r}; start the engine anew to "
                    "change it"
                )

    def _check_vocabulary_map(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        import torch

        offsets = tensors.get("d2t")
        if offsets is None:
            return
        ids = offsets + torch.arange(len(offsets))
        in_range = bool(((ids >= 0) & (ids < self._vocab_size)).all())
        if not in_range or bool((ids.diff() <= 0).any()):
            raise CheckpointError(
                f"the vocabulary map of checkpoint {str(folder)!r} does not name different tokens "
                f"of the target's {self._vocab_size} in order; publish it again"
            )


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return {key: value for key, value in config.items() if key not in _FREE_KEYS}
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{CONFIG} of checkpoint {str(folder)!r} is missing or damaged ({error}); publish it "
            "again"
        ) from error


def _read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / WEIGHTS, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{WEIGHTS} of checkpoint {str(folder)!r} is missing or damaged ({error})"
        ) from error
