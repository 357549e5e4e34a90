"""What the records of earlier runs on a directory tell a run that continues."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from pydantic import ValidationError

from aurora_core.records import RequestStats
from aurora_core.wire import from_json

WINDOW_REQUESTS = 1000
"""Finished requests that count as recent traffic."""
_TAIL_BYTES = 1 << 20
_VERDICTS_TAIL_BYTES = 4 << 20
"""A verdict carries all its evidence: some kilobytes."""


def read_recent_requests(path: Path) -> list[RequestStats]:
    """Return the newest requests of earlier runs on a directory, oldest first.

    Lines that cannot be read are left out: they are evidence, and nothing depends on them.

    Args:
        path: `requests.jsonl`; none need exist.
    """
    lines = _newest_lines(path, _TAIL_BYTES)
    found = []
    for line in lines[-WINDOW_REQUESTS:]:
        with contextlib.suppress(ValidationError):
            found.append(from_json(RequestStats, line))
    return found


def read_last_swap(path: Path) -> float | None:
    """Return when what is live went live, in Unix seconds; None when no swap is found.

    Args:
        path: `verdicts.jsonl`; it need not exist. Lines that cannot be read are left out.
    """
    for line in reversed(_newest_lines(path, _VERDICTS_TAIL_BYTES)):
        if b'"receipt"' not in line:
            continue
        try:
            record = json.loads(line)
            if "receipt" in record:
                return float(record["time"])
        except (ValueError, KeyError, TypeError):
            continue
    return None


def _newest_lines(path: Path, num_bytes: int) -> list[bytes]:
    """Return the last lines of a file, oldest first; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - num_bytes, 0))
            lines = file.read().splitlines()
    except OSError:
        return []
    if size > num_bytes:
        del lines[0]  # most likely cut
    return lines
