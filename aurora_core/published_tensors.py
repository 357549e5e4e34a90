"""Tensors of weights that others have published. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from aurora_core.errors import CheckpointError


def read_published(path: Path, files: Sequence[str], *, what: str) -> dict[str, Tensor]:
    """Return all tensors of a published file, on CPU and as they are stored.

    Torch files are read as plain tensors: what else they may hold is refused, and never run.

    Args:
        path: a directory with one of `files`, or a file.
        files: names looked for in a directory, in this order.
        what: names the weights in messages, for example "Medusa heads".

    Raises:
        CheckpointError: there is no such file, or it cannot be read or holds something else.
    """
    if path.is_dir():
        found = [path / name for name in files if (path / name).is_file()]
        if not found:
            raise CheckpointError(
                f"{str(path)!r} has none of {', '.join(files)}; give a directory or a file of "
                f"{what}"
            )
        path = found[0]
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{what} {str(path)!r} cannot be read ({reason}); give a safetensors file or a torch "
            "file of plain tensors"
        ) from error
    values = list(content.items()) if isinstance(content, dict) else [("", None)]
    tensors = {str(name): value for name, value in values if isinstance(value, Tensor)}
    if len(tensors) < len(values):
        raise CheckpointError(
            f"{str(path)!r}, which should hold {what}, is not a dictionary of tensors; give a "
            "state dict"
        )
    return tensors
