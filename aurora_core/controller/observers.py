"""Core's own observers, registered like any plugin for the length of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurora_core import hookimpl
from aurora_core.tracking import Tracking

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins
    from aurora_core.records import (
        DraftVersion,
        Evidence,
        RequestStats,
        SwapReceipt,
        Verdict,
    )


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


class OfLineage:
    """Passes on to an observer what one lineage did, as if there were no other."""

    def __init__(self, observer: object, lineage: str, *, config: RunConfig, run_dir: str) -> None:
        """
        Args:
            observer: with methods named like hooks; those that it lacks are passed over.
            lineage: which one; empty for the default one.
            config: as of a run of this lineage alone.
            run_dir: the lineage's folder.
        """
        self._observer, self._lineage = observer, lineage
        self._config, self._run_dir = config, run_dir

    @hookimpl
    def aurora_run_started(self) -> None:
        self._tell("aurora_run_started", config=self._config, run_dir=self._run_dir)

    @hookimpl
    def aurora_requests_finished(self, requests: list[RequestStats]) -> None:
        own = [request for request in requests if request.lineage == self._lineage]
        if own:
            self._tell("aurora_requests_finished", requests=own)

    @hookimpl
    def aurora_learner_progress(self, step: int, metrics: dict[str, float], lineage: str) -> None:
        if lineage == self._lineage:
            self._tell("aurora_learner_progress", step=step, metrics=metrics)

    @hookimpl
    def aurora_draft_published(self, draft: DraftVersion, lineage: str) -> None:
        if lineage == self._lineage:
            self._tell("aurora_draft_published", draft=draft)

    @hookimpl
    def aurora_swap_decided(
        self, draft: DraftVersion, verdict: Verdict, evidence: Evidence, lineage: str
    ) -> None:
        if lineage == self._lineage:
            self._tell("aurora_swap_decided", draft=draft, verdict=verdict, evidence=evidence)

    @hookimpl
    def aurora_draft_swapped(
        self,
        draft: DraftVersion | None,
        previous: DraftVersion | None,
        receipt: SwapReceipt,
        lineage: str,
    ) -> None:
        if lineage == self._lineage:
            self._tell("aurora_draft_swapped", draft=draft, previous=previous, receipt=receipt)

    @hookimpl
    def aurora_run_finished(
        self, report: dict[str, Any] | None, error: BaseException | None
    ) -> None:
        own = report
        if report is not None and self._lineage:
            own = report["lineages"][self._lineage]
        self._tell("aurora_run_finished", report=own, error=error)

    def _tell(self, hook: str, **arguments: object) -> None:
        told = getattr(self._observer, hook, None)
        if told is not None:
            told(**arguments)


def make_tracking(
    config: RunConfig, live_version: int, *, lineage: str = "", files_dir: Path | None = None
) -> Tracking | None:
    """Return the MLflow observer that a configuration asks for; close it off the event loop.

    Args:
        config: of the run.
        live_version: version that serves at start, `NO_DRAFTER` for none.
        lineage: whose figures it logs, into an MLflow run of its own in the same store.
        files_dir: folder of that lineage.
    """
    section = config.tracking
    if not section.enabled:
        return None
    return Tracking(
        config.run_dir,
        experiment=section.experiment,
        uri=section.uri,
        live_version=live_version,
        lineage=lineage,
        files_dir=files_dir,
    )
