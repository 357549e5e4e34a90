"""From what the user calls the target to a local directory that holds it. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

from aurora_core.errors import TargetError
from aurora_core.target.cache import cache_directory
from aurora_core.target.hub import HubUnavailable, pull_from_hub
from aurora_core.target.progress import ReportProgress, silent
from aurora_core.target.quickstart import pull_quickstart

QUICKSTART = "quickstart"
"""Name of the target that `aurora run` uses when none is chosen."""


def pull_target(
    name: str,
    *,
    cache_dir: Path | None = None,
    offline: bool = False,
    progress: ReportProgress = silent,
) -> Path:
    """Return a local directory with the target, downloading it if needed.

    Args:
        name: `quickstart`, a directory, or a hub id (`owner/name`). The quickstart target comes
            from one of two sources with *different weights*; see `aurora_core.target.quickstart`.
        cache_dir: Aurora's cache; None for `$AURORA_CACHE_DIR` or the user's cache directory.
            Hub models other than the quickstart's lie in Hugging Face's own cache.
        offline: use only what is already on this machine.
        progress: told of downloads and conversions; `aurora_core.target.progress.progress_bar`
            shows them.

    Raises:
        TargetError: there is no such target, or it cannot be obtained.
    """
    if name == QUICKSTART:
        return pull_quickstart(cache_dir or cache_directory(), offline=offline, progress=progress)
    # Of os.path: these answer "no" where pathlib raises, as for a name that is too long or a user
    # that does not exist.
    directory = os.path.expanduser(name)
    if os.path.isdir(directory):
        return Path(directory).absolute()
    if _is_path(name):
        raise TargetError(
            f"target {name!r} is not a directory; give a model directory, a hub id (owner/name) "
            f"or {QUICKSTART!r}"
        )
    try:
        return pull_from_hub(name, cache_dir=None, offline=offline, progress=progress)
    except HubUnavailable as error:
        raise TargetError(
            f"target {name!r} is not a directory and the model hub does not answer ({error}); "
            "check the network, or give a directory"
        ) from error


def could_be_fetched(name: str) -> bool:
    """Return whether a target that is not on this machine may be somewhere else."""
    if name == QUICKSTART:
        return True
    if _is_path(name):
        return False
    from huggingface_hub import errors, utils

    try:
        # Public, but the package does not list it.
        utils.validate_repo_id(name)  # type: ignore[attr-defined]
    except errors.HFValidationError:
        return False
    return True


def _is_path(name: str) -> bool:
    """Return whether a target is meant as a path on this machine, whatever is there."""
    return name.startswith((".", "/", "~")) or os.path.lexists(name)
