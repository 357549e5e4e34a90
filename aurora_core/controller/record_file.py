"""A file of JSON lines that a full disk cannot make fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aurora_core.controller.run_directory import append_lines

log = logging.getLogger(__name__)


class RecordFile:
    """Appends records. Those that the disk does not take are dropped and counted."""

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        """
        Args:
            path: of the file, made by the first record.
            note: told once, in a sentence, that records are being dropped.
        """
        self.num_dropped = 0
        """Records that could not be written."""
        self._path, self._note = path, note

    def append(self, *records: Mapping[str, Any]) -> None:
        """Add one line per record, all of them or none."""
        try:
            append_lines(self._path, list(records))
        except OSError as error:
            log.warning("%d lines of %s are lost: %s", len(records), self._path, error)
            if not self.num_dropped:
                self._note(
                    f"{self._path.name} cannot be written: {error.strerror}; serving goes on, and "
                    "lines that do not fit are dropped and counted"
                )
            self.num_dropped += len(records)
