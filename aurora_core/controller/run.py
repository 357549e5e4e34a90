"""One run: serve, learn, swap, and stop cleanly whatever happens. Imports no torch.

                      +------------------------ one task group ------------------------+
    SIGINT, SIGTERM --->  signals        the first cancels `work`, the second kills the |
                      |                  learner                                        |
    engine <----------+-  work           start engine, serve, stop learner, measure     |
       |              |                                                                 |
       +-- finished --+-> requests log   once a second: file, evidence, hooks; raises   |
                      |                  when the engine is gone, which ends everything |
    learner ----------+-> learner        starts it again after a crash; hands every     |
       ^              |       |          published version to `swapping`                |
       |              |       v                                                         |
       +-- live ------+-  swapping       judges the newest version, swaps, tells        |
                      +-----------------------------------------------------------------+

Serving waits for nobody: not for the learner, not for a verdict. Winding down (learner, last
requests, engine, report) is shielded from cancellation, and each step of it has its own limit.

An engine that dies ends the run with one sentence and status 1. It is not started again: requests
in it are lost anyway, and what killed it (memory, a driver, a bug) would most often kill it again.
The next run goes on from the same live version.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from aurora_core.console import RunConsole
from aurora_core.controller import build
from aurora_core.controller.announcement import announce
from aurora_core.controller.background import Background
from aurora_core.controller.bookkeeping import Bookkeeping
from aurora_core.controller.earlier_run import read_last_swap
from aurora_core.controller.evidence import LiveTraffic, read_recent_requests
from aurora_core.controller.final_measurement import FinalMeasurement
from aurora_core.controller.learning import prepare_learner
from aurora_core.controller.observers import make_tracking, registered
from aurora_core.controller.operator import Operator
from aurora_core.controller.outcome import (
    INTERRUPTED,
    EngineDied,
    Outcome,
    conclude,
    culprit,
    make_report_folder,
)
from aurora_core.controller.record_file import RecordFile
from aurora_core.controller.requests_log import RequestsLog
from aurora_core.controller.run_directory import RunDirectory
from aurora_core.controller.signals import interruptible
from aurora_core.controller.swapping import Swapping
from aurora_core.controller.trace_counts import TraceCounts
from aurora_core.controller.traffic import OwnTraffic
from aurora_core.errors import BackendError
from aurora_core.records import BackendStatus, RequestStats
from aurora_core.report.history import History
from aurora_core.target.progress import progress_bar

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins


def run(
    config: RunConfig,
    plugins: Plugins,
    *,
    requests: int | None = None,
    duration_s: float | None = None,
    report_dir: Path | None = None,
    learner_module: str = build.LEARNER_MODULE,
) -> int:
    """Do what `aurora run` does and return its exit code.

    Args:
        config: the configuration; its own `requests` and `duration_s` are not looked at.
        plugins: loaded plugins; observers are registered with them for the length of the run.
        requests: end after so many: of the run's own traffic, or of any client without one.
        duration_s: end after so many seconds of serving. Without either, serve until stopped.
        report_dir: where report.json and report.html are written as well.
        learner_module: what `python -m` starts as the learner.

    Returns:
        0; 130 when interrupted; 1 when the engine died, the learner gave up or no report fits.

    Raises:
        AuroraError: something the user can mend kept the run from starting.
    """
    if report_dir is not None:
        make_report_folder(report_dir)
    with RunConsole() as console, interruptible() as interruption:
        try:
            with progress_bar() as progress:
                parts = build.build_parts(config, plugins, progress=progress)
            directory = RunDirectory(config.run_dir, retention=config.retention)
            with directory.locked(), directory.logged():
                one = Run(parts, directory, console, learner_module=learner_module)
                return anyio.run(one.execute, requests, duration_s, report_dir)
        except (KeyboardInterrupt, Exception):
            if interruption.asked:  # while the event loop did not have the signals
                return INTERRUPTED
            raise


class Run:
    """One run on a locked directory. `execute` may be called once."""

    def __init__(
        self,
        parts: build.Parts,
        directory: RunDirectory,
        console: RunConsole,
        *,
        learner_module: str = build.LEARNER_MODULE,
    ) -> None:
        """
        Args:
            parts: what the run is made of.
            directory: locked for this process.
            console: shows the run.
            learner_module: what `python -m` starts as the learner.

        Raises:
            AuroraError: the directory or the trace sink cannot be used.
        """
        lineage = build.prepare(parts, directory)
        self.parts, self.directory, self.console, self.lineage = parts, directory, console, lineage
        self.started, self.outcome = time.time(), Outcome()
        live_version = build.version_at_start(parts, lineage)
        self.history = History(live_version, lineage.newest_version)
        self.traces = TraceCounts(parts.sink)
        self.evidence = LiveTraffic(
            started=self.started, drift_threshold=parts.config.guard.drift_threshold
        )
        self.evidence.remember(
            read_recent_requests(directory.requests), last_swap=read_last_swap(directory.verdicts)
        )
        self.requests_file = RecordFile(directory.requests, console.note)
        self.verdicts_file = RecordFile(directory.verdicts, console.note)
        self.requests_log = RequestsLog(
            parts.backend,
            self.requests_file,
            on_requests=self._on_requests,
            on_status=self._on_status,
        )
        self.swapping = Swapping(
            backend=parts.backend,
            policy=parts.policy,
            traffic=self.evidence,
            live=lineage.live,
            previous=lineage.previous,
            verdicts=self.verdicts_file,
            find=directory.store.read,
            note=console.note,
            notify=parts.plugins.notify,
            on_change=self._on_change,
            guard=parts.config.guard,
            stored=directory.store.numbers,
            on_drift=self._on_drift,
            pinned=lineage.pinned,
            switched_off=lineage.switched_off,
        )
        self.operator = Operator(
            self.swapping, directory.store, is_ending=lambda: self.outcome.is_ending
        )
        self.learner = prepare_learner(
            parts, directory, lineage, self.swapping, console, module=learner_module
        )
        self.traffic = OwnTraffic.of(parts.config, note=console.note, gaps=self.swapping.gaps)
        self.measurement = FinalMeasurement(parts.config, console)
        self.tracking = make_tracking(parts.config, live_version)
        registry = self.tracking.registry if self.tracking else None
        self.bookkeeping = Bookkeeping(directory, registry, note=console.note)
        self._wanted_requests: int | None = None
        self._enough = anyio.Event()
        self._swapping_task, self._polling_task = Background(), Background()

    async def execute(
        self,
        requests: int | None = None,
        duration_s: float | None = None,
        report_dir: Path | None = None,
    ) -> int:
        """Serve until the end that is asked for, write the report, and return the exit code.

        Raises:
            AuroraError: the engine or the learner cannot be started as configured.
        """
        self._wanted_requests = requests
        observers = {"console": self.console, "report": self.history, "tracking": self.tracking}
        with (
            registered(self.parts.plugins, observers),
            anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
        ):
            try:
                announce(self, wanted_requests=requests)
                await self._work_and_wind_down(signals, duration_s)
            except Exception as error:
                self.outcome.error = culprit(error)
            await conclude(self, report_dir)
        return self.outcome.exit_code()

    async def _work_and_wind_down(
        self, signals: AsyncIterable[signal.Signals], duration_s: float | None
    ) -> None:
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as work:
                tasks.start_soon(self._watch_signals, signals, work)
                try:
                    await self._start_engine()
                    self._polling_task.start(tasks, self._poll)
                    self._swapping_task.start(tasks, self.swapping.run)
                    tasks.start_soon(self.operator.run, self.directory.path)
                    if self.learner is not None:
                        tasks.start_soon(self.learner.run)
                    try:
                        await self._serve(duration_s)
                    except BackendError as error:
                        raise EngineDied(str(error)) from error
                    await self._stop_learning()
                    self.outcome.measuring = True
                    await self.measurement.run(self.parts.backend.url)
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._wind_down()
            tasks.cancel_scope.cancel()

    async def _watch_signals(
        self, signals: AsyncIterable[signal.Signals], work: anyio.CancelScope
    ) -> None:
        async for _ in signals:
            if not self.outcome.interrupted:
                self.console.phase("stopping; once more to stop at once")
                self.outcome.interrupted = True
                work.cancel()
            elif self.learner is not None:
                self.learner.kill()

    async def _start_engine(self) -> None:
        self.console.phase("starting the engine")
        plan = build.plan_serving(self.parts, self.directory, initial=self.lineage.live)
        await self.parts.backend.start(plan)
        self.outcome.served = True
        self.parts.plugins.notify(
            "aurora_run_started", config=self.parts.config, run_dir=str(self.directory.path)
        )
        self.console.phase(f"serving at {self.parts.backend.url}")
        if self.lineage.challenger is not None:
            self.swapping.publish(self.lineage.challenger)
        if self.lineage.newest_version:
            await self._on_change()  # what was found may differ from what was written down

    async def _serve(self, duration_s: float | None) -> None:
        """Return when the traffic, the requests or the time are over."""
        if self.traffic is not None:
            await self.traffic.run(
                self.parts.backend.url, requests=self._wanted_requests, duration_s=duration_s
            )
            await self.requests_log.poll()
            return
        with anyio.move_on_after(duration_s):
            await self._enough.wait()

    async def _poll(self) -> None:
        try:
            await self.requests_log.run()
        except BackendError as error:
            raise EngineDied(str(error)) from error

    async def _stop_learning(self) -> None:
        """Leave the machine to the engine; versions that still come are not judged any more."""
        self.outcome.is_ending = True
        if self.learner is not None:
            if self.learner.pid is not None:
                self.console.phase("stopping the learner")
            await self.learner.stop()
        await self._swapping_task.end()
        if self.outcome.served:
            await self.swapping.trials.stop()

    async def _wind_down(self) -> None:
        """End everything that may be running, whatever state it is in."""
        await self._stop_learning()
        await self._polling_task.end()
        self.console.phase("stopping the engine")
        if self.outcome.served:
            try:
                await self.requests_log.poll()
            except BackendError as error:
                self.console.note(f"the last requests are not known: {error}")
        await self.bookkeeping.retry()
        await self.parts.backend.stop()

    def _on_requests(self, requests: list[RequestStats]) -> None:
        """Take in finished requests; those of the final measurement are not traffic."""
        if self.outcome.measuring:
            return
        self.evidence.observe(requests)
        self.parts.plugins.notify("aurora_requests_finished", requests=requests)
        wanted = self._wanted_requests
        if wanted is not None and self.requests_log.record.num_finished >= wanted:
            self._enough.set()

    async def _on_status(self, status: BackendStatus) -> None:
        """Once a second, after the requests: see that all agree on what is live."""
        await self.swapping.reconcile(status)
        await self.bookkeeping.retry()

    async def _on_change(self) -> None:
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
            await self.learner.ask_for_fresh(self.parts.config.guard.fresh_s)
