"""What one lineage has for itself in a run: evidence, judge, learner, versions, books.

The engine, the requests and the console are the run's own, and shared by all lineages. The default
lineage lives in the run directory itself, every other one in a run directory of its own below
`lineages/`, so that whatever reads a run reads a lineage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aurora_core.controller import build
from aurora_core.controller.background import Background
from aurora_core.controller.bookkeeping import Bookkeeping
from aurora_core.controller.earlier_run import read_last_swap
from aurora_core.controller.evidence import LiveTraffic
from aurora_core.controller.learning import prepare_learner
from aurora_core.controller.observers import make_tracking
from aurora_core.controller.operator import Operator
from aurora_core.controller.record_file import RecordFile
from aurora_core.controller.swapping import Swapping
from aurora_core.controller.trace_counts import TraceCounts
from aurora_core.report.history import History

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.controller.run_directory import RunDirectory
    from aurora_core.records import BackendStatus, RequestStats


class Tells(Protocol):
    """Where a lineage says what a person should know."""

    def note(self, text: str) -> None:
        """Say one thing that happened."""

    def learner_state(self, state: str, text: str) -> None:
        """Say in which state the learner is now."""


class LineageRun:
    """One lineage of one run. Nothing of it runs by itself: the run starts and ends its parts."""

    def __init__(
        self,
        parts: build.Parts,
        directory: RunDirectory,
        console: Tells,
        *,
        run_config: RunConfig,
        recent: Sequence[RequestStats],
        started: float,
        learner_module: str,
        is_ending: Callable[[], bool],
    ) -> None:
        """
        Args:
            parts: what the lineage is made of.
            directory: its folder, locked for this process.
            console: is told what happens.
            run_config: of the whole run.
            recent: requests of earlier runs, of all lineages.
            started: Unix seconds at which the run began.
            learner_module: what `python -m` starts as the learner.
            is_ending: whether nothing about the drafters may change any more.

        Raises:
            AuroraError: the directory or the trace sink cannot be used.
        """
        self.name, self.parts, self.directory = parts.lineage, parts, directory
        self.found = build.prepare(parts, directory)
        config, guard = parts.config, parts.config.guard
        notify = partial(parts.plugins.notify, lineage=self.name)
        self.live_at_start = build.version_at_start(parts, self.found)
        self.history = History(self.live_at_start, self.found.newest_version)
        self.traces = TraceCounts(parts.sink)
        self.evidence = LiveTraffic(started=started, drift_threshold=guard.drift_threshold)
        self.evidence.remember(self.own(recent), last_swap=read_last_swap(directory.verdicts))
        self.verdicts_file = RecordFile(directory.verdicts, console.note)
        self.swapping = Swapping(
            backend=parts.backend,
            policy=parts.policy,
            traffic=self.evidence,
            live=self.found.live,
            previous=self.found.previous,
            verdicts=self.verdicts_file,
            find=directory.store.read,
            note=console.note,
            notify=notify,
            on_change=self.on_change,
            guard=guard,
            stored=directory.store.numbers,
            on_drift=self._on_drift,
            pinned=self.found.pinned,
            switched_off=self.found.switched_off,
        )
        self.operator = Operator(self.swapping, directory.store, is_ending=is_ending)
        self.learner = prepare_learner(
            parts,
            directory,
            self.found,
            self.swapping,
            console,
            module=learner_module,
            notify=notify,
        )
        self.tracking = make_tracking(
            run_config, self.live_at_start, lineage=self.name, files_dir=directory.path
        )
        registry = self.tracking.registry if self.tracking else None
        self.bookkeeping = Bookkeeping(directory, registry, note=console.note)
        self.swapping_task = Background()
        self._config = config

    def own(self, requests: Sequence[RequestStats]) -> list[RequestStats]:
        """Return the requests that this lineage served."""
        return [request for request in requests if request.lineage == self.name]

    async def begin_serving(self) -> None:
        """Take up what an earlier run left; the engine answers now."""
        if self.found.challenger is not None:
            self.swapping.publish(self.found.challenger)
        if self.found.newest_version:
            await self.on_change()  # what was found may differ from what was written down

    async def on_status(self, status: BackendStatus | None = None) -> None:
        """Once a second, after the requests: see that all agree on what is live.

        Args:
            status: of this lineage; None asks the engine.
        """
        await self.swapping.reconcile(status or await self.parts.backend.status())
        await self.bookkeeping.retry()

    async def stop_learning(self, say: Callable[[str], None]) -> None:
        """End the learner, then the judging. Callable twice."""
        if self.learner is not None:
            if self.learner.pid is not None:
                say("stopping the learner")
            await self.learner.stop()
        await self.swapping_task.end()

    async def on_change(self) -> None:
        """Remember which versions are in use, and tell the learner."""
        swapping = self.swapping
        await self.bookkeeping.remember(
            swapping.live,
            swapping.previous,
            swapping.challenger,
            on_trial=swapping.trials.draft,
            pinned=swapping.pinned,
            switched_off=swapping.is_switched_off,
        )
        if self.learner is not None:
            await self.learner.tell_live(swapping.live.version if swapping.live else None)

    async def _on_drift(self) -> None:
        """Have the learner leave the past alone for a while."""
        if self.learner is not None:
            await self.learner.ask_for_fresh(self._config.guard.fresh_s)
