"""An engine without learning, for `aurora bench` on a run's drafter."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from aurora_core.controller import build
from aurora_core.controller.run_directory import RunDirectory
from aurora_core.target.progress import progress_bar

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins


@contextlib.asynccontextmanager
async def serve_only(
    config: RunConfig, plugins: Plugins, *, version: int | None = None
) -> AsyncIterator[str]:
    """Start the engine of a configuration, yield its base URL, and stop it at the end.

    Nothing is recorded, learned or swapped, and nothing is written to the run directory, so that
    a run may use it at the same time.

    Args:
        config: of the run whose drafter is served.
        plugins: loaded plugins.
        version: which one; None is the one that was live last, or no drafter in a new directory.

    Raises:
        AuroraError: the configuration, the version or the engine cannot be used.
    """
    with progress_bar() as progress:
        parts = build.build_parts(config, plugins, progress=progress)
    directory = RunDirectory(config.run_dir)
    directory.check_resumable(parts.target, config.speculator.name)
    live = build.read_lineage(directory).live
    initial = live if version is None else directory.store.verify(version)
    with tempfile.TemporaryDirectory(prefix="aurora-serve-") as scratch:
        plan = build.plan_serving(
            parts, directory, initial=initial, record=False, run_dir=Path(scratch)
        )
        try:
            await parts.backend.start(plan)
            yield parts.backend.url
        finally:
            with anyio.CancelScope(shield=True):
                await parts.backend.stop()
