"""Core's own observers, registered like any plugin for the length of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aurora_core.tracking import Tracking

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins


@contextlib.contextmanager
def registered(plugins: Plugins, observers: dict[str, object]) -> Iterator[None]:
    """Register observers by name, and take them out again."""
    for name, observer in observers.items():
        plugins.register(observer, f"run-{name}")
    try:
        yield
    finally:
        for name in observers:
            plugins.manager.unregister(name=f"run-{name}")
            plugins.loaded.pop(f"run-{name}", None)


def make_tracking(config: RunConfig) -> Tracking | None:
    """Return the MLflow observer that a configuration asks for; close it off the event loop."""
    section = config.tracking
    if not section.enabled:
        return None
    return Tracking(config.run_dir, experiment=section.experiment, uri=section.uri)
