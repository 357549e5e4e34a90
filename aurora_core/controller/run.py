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

An engine that dies ends the run with one sentence and exit status 1. It is not started again: the
users' requests in it are lost anyway, and what killed it (memory, a driver, a bug) would most often
kill it again. The next run on the same directory goes on from the same live version.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from aurora_core.console import RunConsole
from aurora_core.controller import build
from aurora_core.controller.background import Background
from aurora_core.controller.evidence import LiveTraffic
from aurora_core.controller.final_measurement import FinalMeasurement
from aurora_core.controller.learning import prepare_learner
from aurora_core.controller.observers import make_tracking, registered
from aurora_core.controller.outcome import (
    INTERRUPTED,
    EngineDied,
    Outcome,
    culprit,
    make_report_folder,
    write_reports,
)
from aurora_core.controller.requests_log import RequestsLog
from aurora_core.controller.run_directory import RunDirectory
from aurora_core.controller.signals import terminated_like_interrupted
from aurora_core.controller.swapping import Swapping
from aurora_core.controller.traffic import OwnTraffic
from aurora_core.errors import BackendError
from aurora_core.records import RequestStats
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
        0; 1 when the engine died or the learner was given up; 130 when interrupted.

    Raises:
        AuroraError: something the user can mend kept the run from starting.
    """
    if report_dir is not None:
        make_report_folder(report_dir)
    with RunConsole() as console, terminated_like_interrupted():
        try:
            with progress_bar() as progress:
                parts = build.build_parts(config, plugins, progress=progress)
            directory = RunDirectory(config.run_dir)
            with directory.locked(), directory.logged():
                one = Run(parts, directory, console, learner_module=learner_module)
                return anyio.run(one.execute, requests, duration_s, report_dir)
        except KeyboardInterrupt:  # while the event loop did not have the signals
            return INTERRUPTED


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
            AuroraError: the directory belongs to something else.
        """
        directory.check_resumable(parts.target, parts.config.speculator.name)
        lineage = build.read_lineage(directory)
        self.parts, self.directory, self.console, self.lineage = parts, directory, console, lineage
        self.started = time.time()
        self.outcome = Outcome()
        self.history = History(build.number_of(lineage.live), lineage.newest_version)
        self.evidence = LiveTraffic(started=self.started)
        self.requests_log = RequestsLog(
            parts.backend, directory.requests, on_requests=self._on_requests
        )
        self.swapping = Swapping(
            backend=parts.backend,
            policy=parts.policy,
            traffic=self.evidence,
            live=lineage.live,
            previous=lineage.previous,
            verdicts=directory.verdicts,
            notify=parts.plugins.notify,
            on_change=self._on_change,
        )
        self.learner = prepare_learner(
            parts, directory, lineage, self.swapping, console, module=learner_module
        )
        self.traffic = OwnTraffic.of(parts.config, note=console.note)
        self.tracking = make_tracking(parts.config)
        self.measurement = FinalMeasurement(parts.config, console)
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
        outcome, plugins = self.outcome, self.parts.plugins
        observers = {"console": self.console, "report": self.history, "tracking": self.tracking}
        with (
            registered(plugins, {name: one for name, one in observers.items() if one is not None}),
            anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
        ):
            self._announce()
            try:
                await self._work_and_wind_down(signals, duration_s)
            except Exception as error:
                outcome.error = culprit(error)
            outcome.learner_gave_up = self.learner is not None and self.learner.has_given_up
            report = write_reports(self, report_dir) if outcome.has_report else None
            plugins.notify("aurora_run_finished", report=report, error=outcome.hook_error)
            if report is not None:
                self.console.summary(report)
            if isinstance(outcome.error, EngineDied):
                self.console.fail(f"the engine is gone: {outcome.error}")
            if self.tracking is not None:
                await anyio.to_thread.run_sync(self.tracking.close)
        return outcome.exit_code()

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
        if self.learner is not None:
            if self.learner.pid is not None:
                self.console.phase("stopping the learner")
            await self.learner.stop()
        await self._swapping_task.end()

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

    async def _on_change(self) -> None:
        """Remember which versions are in use, and tell the learner."""
        state = self.swapping.state
        await anyio.to_thread.run_sync(self.directory.remember, state)
        if self.learner is not None:
            await self.learner.tell_live(state.champion)

    def _announce(self) -> None:
        """Say and write what was resolved, before any work."""
        facts = build.resolved_facts(self.parts, self.directory, self.lineage)
        self.directory.write_resolved(self.parts.config, facts)
        self.console.banner(
            list(facts.items()),
            live_version=build.number_of(self.lineage.live),
            newest=self.lineage.newest_version,
            wanted_requests=self._wanted_requests,
            count_requests=self.traffic.count if self.traffic else None,
        )
