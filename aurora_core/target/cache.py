"""Where Aurora keeps what it can always obtain or compute again."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_directory() -> Path:
    """Return `$AURORA_CACHE_DIR`, or the user's cache directory for Aurora; may not exist yet."""
    chosen = os.environ.get("AURORA_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("aurora", appauthor=False))
