"""Core's own observers, registered like any plugin for the length of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from aurora_core.tracking import Tracking

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins


@contextlib.contextmanager
def registered(plugins: Plugins, observers: Mapping[str, object | None]) -> Iterator[None]:
    """Register observers by name, those that are there, and take them out again."""
    names = [name for name, observer in observers.items() if observer is not None]
    for name in names:
        plugins.register(observers[name], f"run-{name}")
    try:
        yield
    finally:
        for name in names:
            plugins.manager.unregister(name=f"run-{name}")
            plugins.loaded.pop(f"run-{name}", None)


def make_tracking(config: RunConfig, live_version: int) -> Tracking | None:
    """Return the MLflow observer that a configuration asks for; close it off the event loop.

    Args:
        config: of the run.
        live_version: version that serves at start, `NO_DRAFTER` for none.
    """
    section = config.tracking
    if not section.enabled:
        return None
    return Tracking(
        config.run_dir,
        experiment=section.experiment,
        uri=section.uri,
        live_version=live_version,
    )
