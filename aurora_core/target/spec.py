"""Facts about a target directory, read without torch and without loading weights."""

from __future__ import annotations

from pathlib import Path

from aurora_core.records import TargetSpec
from aurora_core.target.architecture import SUPPORTED_ARCHITECTURES
from aurora_core.target.directory import open_target_directory
from aurora_core.target.fingerprint import target_fingerprint, tokenizer_fingerprint

__all__ = ["SUPPORTED_ARCHITECTURES", "read_target_spec"]


def read_target_spec(path: str | Path, *, name: str | None = None) -> TargetSpec:
    """Check a target directory and return its facts and fingerprints.

    The first call hashes the weights (about a second per GB); later calls find the hashes
    remembered in the cache directory and take milliseconds.

    Args:
        path: directory in Hugging Face layout: config.json, safetensors weights, tokenizer.
        name: what the user called the target; the path if not given.

    Raises:
        TargetError: something is missing, damaged, or of a kind that cannot be served.
    """
    directory = open_target_directory(path)
    architecture = directory.architecture
    # Before the weights are hashed: a missing tokenizer should not take minutes to be noticed.
    tokenizer = tokenizer_fingerprint(directory.path)
    return TargetSpec(
        name=name or str(path),
        path=str(directory.path),
        architecture=architecture.name,
        fingerprint=target_fingerprint(directory.config, directory.tensors, directory.files),
        tokenizer_fingerprint=tokenizer,
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        num_layers=architecture.num_layers,
        max_position_embeddings=architecture.max_position_embeddings,
    )
