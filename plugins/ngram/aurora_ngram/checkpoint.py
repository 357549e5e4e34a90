"""The checkpoint of a drafter without weights: who it was made for, and no tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from aurora_core.errors import CheckpointError
from aurora_core.records import TargetSpec

FORMAT = "ngram"


def save(path: Path, target: TargetSpec) -> None:
    """Write config.json and a model.safetensors without tensors into an existing folder."""
    config = {
        "format": FORMAT,
        "target_fingerprint": target.fingerprint,
        "tokenizer_fingerprint": target.tokenizer_fingerprint,
    }
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file({}, path / "model.safetensors")


def check(path: Path, target: TargetSpec) -> None:
    """Make sure that `save` wrote this for the target.

    Raises:
        CheckpointError: it cannot be read, holds tensors, or is of another format or target.
    """
    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
        found = config["format"], config["target_fingerprint"]
        tensors = load_file(path / "model.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"n-gram checkpoint {str(path)!r} cannot be read ({error}); publish it again"
        ) from error
    if found != (FORMAT, target.fingerprint):
        raise CheckpointError(
            f"checkpoint {str(path)!r} is of format {found[0]!r} for target {found[1]!r}, expected "
            f"{FORMAT!r} for {target.fingerprint!r}"
        )
    if tensors:
        raise CheckpointError(
            f"n-gram checkpoint {str(path)!r} holds tensor {min(tensors)!r}, and n-grams have none"
        )
