"""Folders in which anything may lie: whether one could be made, what it takes, how it goes."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path


def check_makeable(folder: Path) -> None:
    """See that a folder could be made, or written to if it is there; create nothing.

    Raises:
        OSError: it, or the nearest thing above it, is no folder that may be written.
    """
    nearest = _nearest(folder.absolute())
    if not nearest.is_dir():
        nearest.stat()  # a link that leads nowhere or in a circle says so itself
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def num_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; what cannot be looked at counts as none."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


def remove(path: Path) -> None:
    """Delete a folder, or the file or link that lies in its place; a failure raises nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def _nearest(folder: Path) -> Path:
    """Return the folder, or what is there of the way to it; links count as being there."""
    for one in (folder, *folder.parents):
        try:
            os.lstat(one)
        except (FileNotFoundError, NotADirectoryError):
            continue
        return one
    return folder
