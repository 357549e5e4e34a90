"""Hashes that tell one target, or one tokenizer, from another."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aurora_core.errors import TargetError
from aurora_core.target.architecture import read_json
from aurora_core.target.cache import cache_directory
from aurora_core.target.shards import StoredTensor

logger = logging.getLogger(__name__)

VOLATILE_CONFIG_KEYS = frozenset({"_name_or_path", "_model_name_or_path", "transformers_version"})
"""Keys of config.json that differ between copies of one model."""

SPECIAL_TOKEN_KEYS = (
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "additional_special_tokens",
)

REMEMBER_FROM_BYTES = 16 * 2**20
"""Smaller files are hashed again each time: a remembered hash costs as much to look up."""


def target_fingerprint(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor], files: tuple[Path, ...]
) -> str:
    """Return a hash of configuration and weights, equal for equal targets wherever they lie."""
    with ThreadPoolExecutor(max_workers=min(8, len(files))) as executor:
        hashes = sorted(executor.map(file_hash, files))
    return _digest(
        {
            "config": {k: v for k, v in config.items() if k not in VOLATILE_CONFIG_KEYS},
            "tensors": sorted((n, list(t.shape), t.dtype) for n, t in tensors.items()),
            "files": hashes,
        }
    )


def tokenizer_fingerprint(directory: Path) -> str:
    """Return a hash of vocabulary, special tokens and chat template.

    Raises:
        TargetError: the directory has no tokenizer, or one that cannot be read.
    """
    content: dict[str, Any] = {"vocabulary": _vocabulary(directory)}
    settings_file = directory / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    content["special_tokens"] = {key: settings.get(key) for key in SPECIAL_TOKEN_KEYS}
    template = directory / "chat_template.jinja"
    content["chat_template"] = (
        template.read_text(encoding="utf-8")
        if template.is_file()
        else settings.get("chat_template")
    )
    return _digest(content)


def file_hash(file: Path) -> str:
    """Return the sha256 of a file, remembered for large files while size and time are unchanged.

    What is remembered lies in the cache directory, because the file's own may be read-only.
    """
    real = file.resolve()
    status = real.stat()
    if status.st_size < REMEMBER_FROM_BYTES:
        return _sha256(real)
    state = [str(real), status.st_size, status.st_mtime_ns, status.st_ino]
    name = hashlib.sha256(str(real).encode()).hexdigest()[:32]
    side_file = cache_directory() / "hashes" / f"{name}.json"
    try:
        remembered = json.loads(side_file.read_text(encoding="utf-8"))
        if remembered["state"] == state:
            return str(remembered["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        logger.debug("no remembered hash of %s", real)
    digest = _sha256(real)
    _write_atomically(side_file, json.dumps({"state": state, "sha256": digest}))
    return digest


def _vocabulary(directory: Path) -> Any:
    fast = directory / "tokenizer.json"
    if fast.is_file():
        content = read_json(fast)
        # Calls set these two in passing, and a saved tokenizer keeps them: not its identity.
        return {k: v for k, v in content.items() if k not in ("truncation", "padding")}
    for names in (("tokenizer.model",), ("vocab.json", "merges.txt")):
        if all((directory / name).is_file() for name in names):
            return [_sha256(directory / name) for name in names]
    raise TargetError(
        f"target directory {str(directory)!r} has no tokenizer (tokenizer.json, tokenizer.model, "
        "or vocab.json with merges.txt); add the model's tokenizer files"
    )


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _write_atomically(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as partial:
            partial.write(text)
        os.replace(partial.name, file)
    except OSError as error:
        logger.info("the hash of a weights file is not remembered: %s", error)
