"""Why a process that was asked to find or make something could not: its last words."""

from __future__ import annotations

import subprocess

USER_ERROR = 2
"""Exit status of a process whose last line on stderr is a sentence for the user."""


def find_failure(
    finished: subprocess.CompletedProcess[bytes], otherwise: str, *, remedy: str = ""
) -> str | None:
    """Return why a process failed, in a sentence; None if it did not.

    Args:
        finished: with its stderr.
        otherwise: what is not known or not there now; begins the sentence where the process, as
            one that crashed, has none of its own.
        remedy: ends that sentence.
    """
    if not finished.returncode:
        return None
    lines = finished.stderr.decode(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else f"exit status {finished.returncode}"
    if finished.returncode == USER_ERROR:
        return reason
    return f"{otherwise}: {reason}" + (f"; {remedy}" if remedy else "")
