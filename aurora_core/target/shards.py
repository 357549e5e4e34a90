"""Which safetensors file of a target holds which tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from aurora_core.errors import TargetError
from aurora_core.target.architecture import Architecture, read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

SUPPORTED_DTYPES = ("BF16", "F16", "F32")
"""Storage types of the weights, as safetensors names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Header of one tensor, read without its data."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    """As safetensors names it, for example BF16."""


def weight_files(directory: Path) -> tuple[Path, ...]:
    """Return the files that hold a target's weights, sorted by name.

    Raises:
        TargetError: there are none, or the index names a file that is not there.
    """
    index = directory / INDEX_FILE
    if not index.is_file():
        if (directory / SINGLE_FILE).is_file():
            return (directory / SINGLE_FILE,)
        pickled = sorted(file.name for file in directory.glob("*.bin"))
        seen = f", only {pickled[0]}, which is never unpickled" if pickled else ""
        raise TargetError(
            f"target directory {str(directory)!r} has no weights ({SINGLE_FILE} or {INDEX_FILE})"
            f"{seen}; give a directory with safetensors weights"
        )
    names = sorted(set(read_json(index).get("weight_map", {}).values()))
    if not names:
        raise TargetError(f"{index} names no weights; fetch the target again")
    for name in names:
        # An index is part of a download: it may only name its own neighbours.
        if Path(name).name != name or not (directory / name).is_file():
            raise TargetError(
                f"target directory {str(directory)!r} lacks the shard {name!r} "
                f"that {INDEX_FILE} names; fetch the target again"
            )
    return tuple(directory / name for name in names)


def read_headers(files: tuple[Path, ...]) -> dict[str, StoredTensor]:
    """Return name -> header of every tensor in the files.

    Raises:
        TargetError: a file is truncated or not a safetensors file.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    part = opened.get_slice(name)
                    tensors[name] = StoredTensor(
                        file=file, shape=tuple(part.get_shape()), dtype=part.get_dtype()
                    )
        except (OSError, SafetensorError) as error:
            raise TargetError(
                f"weights file {str(file)!r} is incomplete or damaged ({error}); "
                "fetch the target again"
            ) from error
    return tensors


def check_tensors(
    tensors: dict[str, StoredTensor], architecture: Architecture, *, directory: Path
) -> None:
    """Require every tensor that the architecture needs, in shape and storage type.

    Raises:
        TargetError: one is missing, misshapen or of an unsupported type; others are ignored.
    """
    for name, shape in architecture.tensor_shapes().items():
        stored = tensors.get(name)
        if stored is None:
            raise TargetError(
                f"weights of target {str(directory)!r} lack tensor {name!r} "
                f"of {architecture.name}; fetch the target again"
            )
        if stored.shape != shape:
            raise TargetError(
                f"tensor {name!r} of target {str(directory)!r} has shape {list(stored.shape)} "
                f"where config.json says {list(shape)}; fetch the target again"
            )
        if stored.dtype not in SUPPORTED_DTYPES:
            raise TargetError(
                f"tensor {name!r} of target {str(directory)!r} is stored as {stored.dtype}; "
                f"supported: {', '.join(SUPPORTED_DTYPES)}"
            )
