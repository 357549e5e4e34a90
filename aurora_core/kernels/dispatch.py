"""Which implementation a call takes, and on how many threads."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core.target.cache import cache_directory

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

NUM_LANES = 8
"""Row lengths that are no multiple of this take the torch path."""

_num_threads = 1


@functools.cache
def compiled() -> bool:
    """Return whether the compiled CPU kernels can be used in this process."""
    if os.environ.get("AURORA_KERNELS", "") == "torch":
        return False
    try:
        import numba
    except ImportError as error:
        log.warning("numba cannot be imported (%s); kernels fall back to torch operators", error)
        return False
    numba.config.CACHE_DIR = str(_cache_dir())
    return True


def _cache_dir() -> Path:
    """Return where compiled code is kept: numba alone would not see a change in another module."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return cache_directory() / "kernels" / digest[:16]


def use_compiled(tensor: Tensor) -> bool:
    """Return whether a call on this tensor takes the compiled path."""
    return tensor.device.type == "cpu" and compiled()


def set_num_threads(num_threads: int) -> None:
    """Set the threads of the compiled kernels in this process; torch's own count is separate."""
    global _num_threads
    if num_threads < 1:
        raise ValueError(f"num_threads must be at least 1, got {num_threads}")
    if compiled() and num_threads > 1:
        import numba

        num_threads = min(num_threads, numba.config.NUMBA_NUM_THREADS)
        numba.set_num_threads(num_threads)
    _num_threads = num_threads


def num_threads() -> int:
    """Return the threads of the compiled kernels."""
    return _num_threads
