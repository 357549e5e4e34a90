"""The learner's log file, as the controller opens and quotes it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger(__name__)


def open_log(path: Path) -> BinaryIO:
    """Open the log to append to it, or nowhere: a full disk is no reason not to learn."""
    try:
        return path.open("ab")
    except OSError as error:
        log.warning("the learner's log is lost: %s", error)
        return open(os.devnull, "ab")


def log_size(path: Path) -> int:
    """Return where the next words will begin."""
    return path.stat().st_size if path.exists() else 0


def last_words(path: Path, start: int) -> str:
    """Return the last sentence after `start`, with the indented lines that follow it."""
    lines: list[str] = []
    if path.exists():
        with path.open("rb") as stream:
            stream.seek(start)
            lines = stream.read().decode(errors="replace").rstrip().splitlines()
    first = next((n for n in range(len(lines) - 1, -1, -1) if lines[n][:1] != " "), None)
    if first is None:
        return f"the learner refused to start; see {str(path)!r}"
    return "\n".join(lines[first:])
