"""Tensors of a checkpoint, read and written strictly. Imports torch.

Serving engines load what they find and keep random weights for the rest, so whoever reads or writes
a checkpoint checks every name, shape, type and value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from aurora_core.errors import CheckpointError

WEIGHTS_FILE = "model.safetensors"


def read_tensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    maps: Mapping[str, torch.dtype] | None = None,
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint: exactly those that are expected.

    Args:
        path: directory of the checkpoint.
        shapes: every tensor's name and shape.
        maps: tensors that are no weights, with their dtype; all others hold floating point.

    Raises:
        CheckpointError: the file cannot be read, or a tensor is missing, unknown, of another
            shape or type, or holds a value that is not finite.
    """
    try:
        tensors = load_file(path / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{WEIGHTS_FILE} of checkpoint {str(path)!r} is missing or damaged ({error}); "
            "publish it again"
        ) from error
    missing, extra = sorted(shapes.keys() - tensors), sorted(tensors.keys() - shapes)
    if missing or extra:
        found = [f"lacks {names}" for names in (missing,) if names]
        found += [f"has the unknown {names}" for names in (extra,) if names]
        raise CheckpointError(f"checkpoint {str(path)!r} {' and '.join(found)}; publish it again")
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name!r} of checkpoint {str(path)!r} has shape {list(tensor.shape)}, "
                f"expected {list(shape)}; publish it again"
            )
        wanted = (maps or {}).get(name)
        if tensor.dtype != wanted if wanted else not tensor.is_floating_point():
            raise CheckpointError(
                f"tensor {name!r} of checkpoint {str(path)!r} holds {tensor.dtype}, expected "
                f"{wanted or 'floating point'}; publish it again"
            )
        _require_finite(tensor, name, path)
    return tensors


def write_tensors(tensors: Mapping[str, Tensor], path: Path, *, dtype: torch.dtype) -> None:
    """Write the tensors of a checkpoint into a directory, creating it if needed.

    Args:
        tensors: on any device; those of floating point are stored in `dtype`.
        path: directory of the checkpoint.
        dtype: bfloat16 or float32.

    Raises:
        CheckpointError: a value is not finite.
    """
    stored = {}
    for name, tensor in tensors.items():
        kept = tensor.detach().cpu().contiguous()
        stored[name] = kept.to(dtype) if kept.is_floating_point() else kept
        _require_finite(stored[name], name, path)
    path.mkdir(parents=True, exist_ok=True)
    save_file(stored, path / WEIGHTS_FILE, metadata={"format": "pt"})


def _require_finite(tensor: Tensor, name: str, path: Path) -> None:
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(
            f"tensor {name!r} of checkpoint {str(path)!r} has values that are not finite; "
            "go back to an earlier version"
        )
