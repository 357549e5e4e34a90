"""Is there room for what is about to be written?"""

from __future__ import annotations

import shutil
from pathlib import Path

from aurora_core.errors import TargetError


def require_space(directory: Path, *, num_bytes: int, purpose: str) -> None:
    """Require free space on the disk of an existing directory.

    Raises:
        TargetError: there is less.
    """
    free = shutil.disk_usage(directory).free
    if free < num_bytes:
        raise TargetError(
            f"{purpose} needs {num_bytes / 1e6:.0f} MB in {str(directory)!r}, where "
            f"{free / 1e6:.0f} MB are free; free space there or set AURORA_CACHE_DIR"
        )
