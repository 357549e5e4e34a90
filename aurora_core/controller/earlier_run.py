"""What the verdicts of earlier runs on a directory tell a run that continues."""

from __future__ import annotations

import json
import os
from pathlib import Path

_TAIL_BYTES = 4 << 20
"""A verdict carries all its evidence: some kilobytes."""


def read_last_swap(path: Path) -> float | None:
    """Return when what is live went live, in Unix seconds; None when no swap is found.

    Args:
        path: `verdicts.jsonl`; it need not exist. Lines that cannot be read are left out.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if b'"receipt"' not in line:
            continue
        try:
            record = json.loads(line)
            if "receipt" in record:
                return float(record["time"])
        except (ValueError, KeyError, TypeError):
            continue
    return None
