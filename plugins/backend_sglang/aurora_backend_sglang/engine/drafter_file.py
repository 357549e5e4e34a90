"""A version's tensors, read from the run's own folder and checked before any of them is used."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core.errors import CheckpointError
from aurora_core.versions import WEIGHTS, VersionStore

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFile:
    """A checked drafter."""

    checksum: str
    """sha256 of the file."""
    tensors: dict[str, Tensor]

    def target_ids(self) -> Tensor | None:
        """Return the target id of each draft id, int64 [D]; None without a vocabulary map."""
        import torch

        offsets = self.tensors.get("d2t")
        return None if offsets is None else offsets + torch.arange(len(offsets))


def read_version(
    versions_dir: str, version: int, checksum: str, *, like: Path, vocab_size: int
) -> DrafterFile:
    """Read a published version. SGLang itself drops unknown tensors and misses absent ones.

    Args:
        versions_dir: the only folder that drafters are loaded from.
        version: its number.
        checksum: sha256 that it was announced with.
        like: checkpoint that the engine was started with; a version must have its tensors.
        vocab_size: of the target.

    Raises:
        CheckpointError: it is missing, other than announced, incomplete or not finite.
    """
    directory = VersionStore(Path(versions_dir)).directory(version)
    path = directory / WEIGHTS
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"version {version} cannot be read at {str(path)!r}: {error.strerror}; the engine "
            "must see the run directory under the same path as the controller"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != checksum:
        raise CheckpointError(
            f"version {version} was announced with checksum {checksum[:12]!r}, but its weights "
            f"have {found[:12]!r}; publish it again"
        )
    tensors = _parse(data, path)
    _check(tensors, tensor_shapes(like), directory)
    _check_vocabulary(tensors, vocab_size, directory)
    return DrafterFile(checksum=found, tensors=tensors)


def tensor_shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of a checkpoint's tensors, from the header of its file.

    Raises:
        CheckpointError: it cannot be read.
    """
    path = checkpoint / WEIGHTS
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"the drafter that the engine was started with cannot be read at {str(path)!r} any "
            f"more ({error}); start the engine again"
        ) from error
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name[:2] != "__"}


def _parse(data: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Tensor] = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged ({error}); publish it again") from error
    return tensors


def _check(
    tensors: dict[str, Tensor], expected: dict[str, tuple[int, ...]], directory: Path
) -> None:
    missing, extra = sorted(expected.keys() - tensors), sorted(tensors.keys() - expected)
    if missing or extra:
        found = [f"lacks {names}" for names in (missing,) if names]
        found += [f"has the unknown {names}" for names in (extra,) if names]
        raise CheckpointError(f"{str(directory)!r} {' and '.join(found)}; publish it again")
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name!r} in {str(directory)!r} has shape {list(tensor.shape)}, but the "
                f"engine was started with a drafter that has {list(shape)}; start it again"
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"tensor {name!r} in {str(directory)!r} has values that are not finite; go back "
                "to an earlier version"
            )


def _check_vocabulary(tensors: dict[str, Tensor], vocab_size: int, directory: Path) -> None:
    import torch

    offsets = tensors.get("d2t")
    if offsets is None:
        return
    ids = offsets + torch.arange(len(offsets))
    increasing = bool((ids[1:] > ids[:-1]).all())
    if not increasing or int(ids[0]) < 0 or int(ids[-1]) >= vocab_size:
        raise CheckpointError(
            f"the vocabulary map in {str(directory)!r} is not one of increasing ids below "
            f"{vocab_size}; publish it again"
        )
