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

import contextlib
import signal
import time
from collections.abc import AsyncIterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from aurora_core.console import RunConsole
from aurora_core.console_lineages import LineageConsole
from aurora_core.controller import build
from aurora_core.controller.announcement import announce
from aurora_core.controller.background import Background
from aurora_core.controller.build_lineages import build_lineages, plan_lineage
from aurora_core.controller.evidence import read_recent_requests
from aurora_core.controller.final_measurement import FinalMeasurement
from aurora_core.controller.lineage_run import LineageRun, Tells
from aurora_core.controller.observers import OfLineage, registered
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
from aurora_core.controller.traffic import OwnTraffic
from aurora_core.controller.turns import Turns
from aurora_core.errors import BackendError
from aurora_core.records import BackendStatus, RequestStats
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
        0; 130 when interrupted; 1 when the engine died, the learner gave up, all of the run's own
        requests failed or no report fits.

    Raises:
        AuroraError: something the user can mend kept the run from starting.
    """
    if report_dir is not None:
        make_report_folder(report_dir)
    with RunConsole() as console, interruptible() as interruption:
        try:
            with progress_bar() as progress:
                parts = build.build_parts(config, plugins, progress=progress)
            lineages = build_lineages(parts)
            directory = RunDirectory(config.run_dir, retention=config.retention)
            with contextlib.ExitStack() as held:
                held.enter_context(directory.locked())
                held.enter_context(directory.logged())
                others = []
                for one in lineages:
                    place = RunDirectory(one.config.run_dir, retention=config.retention)
                    held.enter_context(place.locked())
                    others.append((one, place))
                a_run = Run(
                    parts, directory, console, lineages=others, learner_module=learner_module
                )
                return anyio.run(a_run.execute, requests, duration_s, report_dir)
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
        lineages: Sequence[tuple[build.Parts, RunDirectory]] = (),
        learner_module: str = build.LEARNER_MODULE,
    ) -> None:
        """
        Args:
            parts: what the run and its default lineage are made of.
            directory: locked for this process.
            console: shows the run.
            lineages: parts and locked directory of every further lineage.
            learner_module: what `python -m` starts as the learner.

        Raises:
            AuroraError: the directory or the trace sink cannot be used.
        """
        self.parts, self.directory, self.console = parts, directory, console
        self.started, self.outcome = time.time(), Outcome()
        recent = read_recent_requests(directory.requests)

        def prepare(parts: build.Parts, directory: RunDirectory, tells: Tells) -> LineageRun:
            return LineageRun(
                parts,
                directory,
                tells,
                run_config=self.parts.config,
                recent=recent,
                started=self.started,
                learner_module=learner_module,
                is_ending=lambda: self.outcome.is_ending,
            )

        self.default = prepare(parts, directory, console)
        self.lineages = [self.default]
        """All lineages, the default one first."""
        self._lineage_consoles: dict[str, LineageConsole] = {}
        for other, place in lineages:
            tells = self._lineage_consoles[other.lineage] = LineageConsole(console, other.lineage)
            self.lineages.append(prepare(other, place, tells))
            tells.live_version = self.lineages[-1].live_at_start
        for one in self.lineages[1:]:
            # Whoever swaps, everybody's answers pause.
            one.swapping.gaps = self.default.swapping.gaps
        self.requests_file = RecordFile(directory.requests, console.note)
        self.requests_log = RequestsLog(
            parts.backend,
            self.requests_file,
            on_requests=self._on_requests,
            on_status=self._on_status,
        )
        learners = [one.learner for one in self.lineages if one.learner is not None]
        section = parts.config.learner
        self.turns = Turns(learners, concurrent=section.concurrent, turn_s=section.turn_s)
        self.traffic = OwnTraffic.of(
            parts.config, note=console.note, gaps=self.default.swapping.gaps
        )
        self.measurement = FinalMeasurement(parts.config, console)
        self._wanted_requests: int | None = None
        self._enough = anyio.Event()
        self._polling_task = Background()

    def count_finished(self) -> int:
        """Return how many requests of all kinds the engine has finished."""
        return self.requests_log.record.num_finished

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
        with (
            registered(self.parts.plugins, self._observers()),
            anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
        ):
            try:
                announce(self, wanted_requests=requests)
                await self._work_and_wind_down(signals, duration_s)
            except Exception as error:
                self.outcome.error = culprit(error)
            await conclude(self, report_dir)
        return self.outcome.exit_code()

    def _observers(self) -> dict[str, object | None]:
        """Return core's own observers by name; beside other lineages, each hears of its own."""
        observers: dict[str, object | None] = {}
        for one in self.lineages:
            console = self._lineage_consoles.get(one.name, self.console)
            mine: dict[str, object | None] = {
                "console": console,
                "report": one.history,
                "tracking": one.tracking,
            }
            for kind, observer in mine.items():
                if observer is not None and len(self.lineages) > 1:
                    observer = OfLineage(
                        observer,
                        one.name,
                        config=one.parts.config,
                        run_dir=str(one.directory.path),
                    )
                observers[f"{kind}-{one.name}" if one.name else kind] = observer
        return observers

    async def _work_and_wind_down(
        self, signals: AsyncIterable[signal.Signals], duration_s: float | None
    ) -> None:
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as work:
                tasks.start_soon(self._watch_signals, signals, work)
                try:
                    await self._start_engine()
                    self._polling_task.start(tasks, self._poll)
                    await self.turns.begin()
                    for one in self.lineages:
                        one.swapping_task.start(tasks, one.swapping.run)
                        tasks.start_soon(one.operator.run, one.directory.path)
                        if one.learner is not None:
                            tasks.start_soon(one.learner.run)
                    tasks.start_soon(self.turns.run)
                    try:
                        await self._serve(duration_s)
                    except BackendError as error:
                        raise EngineDied(str(error)) from error
                    await self._stop_learning()
                    self.outcome.measuring = True
                    others = [one.name for one in self.lineages[1:]]
                    await self.measurement.run(self.parts.backend.url, others)
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
                continue
            for one in self.lineages:
                if one.learner is not None:
                    one.learner.kill()

    async def _start_engine(self) -> None:
        self.console.phase("starting the engine")
        others = tuple(
            plan_lineage(one.parts, one.directory, self.parts.config, initial=one.found.live)
            for one in self.lineages[1:]
        )
        plan = build.plan_serving(
            self.parts, self.directory, initial=self.default.found.live, lineages=others
        )
        await self.parts.backend.start(plan)
        self.outcome.served = True
        self.parts.plugins.notify(
            "aurora_run_started", config=self.parts.config, run_dir=str(self.directory.path)
        )
        self.console.phase(f"serving at {self.parts.backend.url}")
        for one in self.lineages:
            await one.begin_serving()

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
        async with anyio.create_task_group() as stopping:
            for one in self.lineages:
                stopping.start_soon(one.stop_learning, self.console.phase)
        if self.outcome.served:
            for one in self.lineages:
                await one.swapping.trials.stop()

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
        for one in self.lineages:
            await one.bookkeeping.retry()
        await self.parts.backend.stop()

    def _on_requests(self, requests: list[RequestStats]) -> None:
        """Take in finished requests; those of the final measurement are not traffic."""
        if self.outcome.measuring:
            return
        for one in self.lineages:
            one.evidence.observe(one.own(requests))
        self.parts.plugins.notify("aurora_requests_finished", requests=requests)
        wanted = self._wanted_requests
        if wanted is not None and self.requests_log.record.num_finished >= wanted:
            self._enough.set()

    async def _on_status(self, status: BackendStatus) -> None:
        """Once a second, after the requests: see that all agree on what is live."""
        await self.default.on_status(status)
        for one in self.lineages[1:]:
            await one.on_status()
