"""A target directory whose configuration and weights have been checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aurora_core.target.architecture import Architecture, parse_architecture, read_config
from aurora_core.target.shards import StoredTensor, check_tensors, read_headers, weight_files


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDirectory:
    """What `open_target_directory` found; no weights are in memory."""

    path: Path
    """Absolute."""
    config: Mapping[str, Any]
    """Content of config.json."""
    architecture: Architecture
    files: tuple[Path, ...]
    """Safetensors files, sorted by name."""
    tensors: Mapping[str, StoredTensor]
    """Full name -> header of every stored tensor."""


def open_target_directory(path: str | Path) -> TargetDirectory:
    """Read config.json and the headers of the weights, and require that they fit.

    Raises:
        TargetError: something is missing, damaged, or of a kind that cannot be served.
    """
    directory = Path(path).expanduser().absolute()
    config = read_config(directory)
    architecture = parse_architecture(config, directory)
    files = weight_files(directory)
    tensors = read_headers(files)
    check_tensors(tensors, architecture, directory=directory)
    return TargetDirectory(
        path=directory, config=config, architecture=architecture, files=files, tensors=tensors
    )
