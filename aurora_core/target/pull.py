"""From what the user calls the target to a local directory that holds it. Imports no torch."""

from __future__ import annotations

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
    directory = Path(name).expanduser()
    if directory.is_dir():
        return directory.absolute()
    if name.startswith((".", "/", "~")) or directory.exists():
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
