"""The learner as a child process: started, listened to, restarted after a crash, and reaped.

    stdin   controller -> learner   one JSON command per line; end of file means "stop cleanly"
    stdout  learner -> controller   one JSON event per line
    stderr  its log                 appended to logs/learner.log

It runs in a session of its own, so that Ctrl-C in a terminal reaches the controller alone, and so
that its own children (Lightning starts some for several devices) end with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import psutil
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import ValidationError

from aurora_core.controller.learner_log import last_words, log_size, open_log
from aurora_core.errors import AuroraError
from aurora_core.learner.protocol import (
    USER_ERROR,
    Command,
    Event,
    Fresh,
    Live,
    Progress,
    Published,
    Started,
    Stop,
    Stopped,
    Turn,
    Waiting,
    command_line,
    read_event,
)

log = logging.getLogger(__name__)

_MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting:
    """It crashed and will be started again."""

    reason: str
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """It crashed too often in a row; the run serves on without learning."""

    reason: str


@dataclass
class LearnerRecord:
    """What became of the learner, for the console and the report."""

    state: str = "starting"
    """starting, waiting, learning, restarting, finished, stopped, gave_up."""
    step: int = 0
    num_restarts: int = 0
    peak_memory_mib: float = 0.0
    """Resident memory with its children, sampled once a second."""


class LearnerProcess:
    """Keeps one learner running beside the engine; its crash never touches serving."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_path: Path,
        max_restarts: int,
        on_event: Callable[[Event | Restarting | GaveUp], None],
        live_version: int | None = None,
        backoff_s: float = 1.0,
        grace_s: float = 30.0,
    ) -> None:
        """
        Args:
            command: program and arguments.
            environment: added to the controller's own environment.
            log_path: file that its stderr is appended to.
            max_restarts: crashes in a row that are answered by a restart; a published version
                ends the row.
            on_event: called on the event loop with every event, restarts and the end included.
            live_version: version that serves at start, None for none.
            backoff_s: wait before the first restart of a row; doubles up to 30 s.
            grace_s: time it has to write a checkpoint when asked to stop.
        """
        self.record = LearnerRecord()
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._log_path = log_path
        self._max_restarts, self._backoff_s, self._grace_s = max_restarts, backoff_s, grace_s
        self._on_event = on_event
        self._process: Process | None = None
        self._live_version = live_version
        self._has_turn = True
        self._crashes_in_a_row = 0
        self._started_once = False
        self._stop_requested = anyio.Event()
        self._ended = anyio.Event()

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process else None

    @property
    def has_given_up(self) -> bool:
        """Whether it crashed too often and is not started again."""
        return self.record.state == "gave_up"

    async def run(self) -> None:
        """Run it until it finishes, gives up or is stopped; cancelling ends it too.

        Raises:
            AuroraError: it refused its configuration before it ever started to learn.
        """
        try:
            while not self._stop_requested.is_set():
                log_start = log_size(self._log_path)
                status = await self._run_once()
                if self._stop_requested.is_set():
                    self.record.state = "stopped"
                elif status == 0:
                    self.record.state = "finished"
                elif status == USER_ERROR and not self._started_once:
                    raise AuroraError(last_words(self._log_path, log_start))
                elif self._crashes_in_a_row < self._max_restarts:
                    await self._wait_to_restart(status)
                    continue
                else:
                    self.record.state = "gave_up"
                    self._on_event(GaveUp(reason=self._describe_end(status)))
                return
        finally:
            self._ended.set()

    async def tell_live(self, version: int | None) -> None:
        """Say which version serves, None for none; repeated to a restarted learner."""
        self._live_version = version
        await self._send(Live(version=version))

    @property
    def has_work(self) -> bool:
        """Whether it runs and does not wait for traces, as far as it has said."""
        return self._process is not None and self.record.state != "waiting"

    async def give_turn(self, granted: bool) -> None:
        """Let it train, or rest; repeated to a restarted learner."""
        if granted != self._has_turn:
            self._has_turn = granted
            await self._send(Turn(granted=granted))

    async def ask_for_fresh(self, seconds: float) -> None:
        """Say that the traffic has changed: train on new traces alone for so long."""
        if seconds > 0:
            await self._send(Fresh(seconds=seconds))

    async def stop(self) -> None:
        """Let it write a checkpoint and end; force it when that takes too long."""
        self._stop_requested.set()
        if self._process is not None:
            await self._end(self._process)
            await self._ended.wait()

    def kill(self) -> None:
        """End it at once, without a checkpoint."""
        self._stop_requested.set()
        self._grace_s = 0.0
        if self._process is not None:
            _signal_group(self._process, signal.SIGKILL)

    async def _run_once(self) -> int:
        with open_log(self._log_path) as log_file:
            process = await anyio.open_process(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=self._environment,
                start_new_session=True,
            )
        self._process = process
        try:
            await self._send(Live(version=self._live_version))
            if not self._has_turn:
                await self._send(Turn(granted=False))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_memory, process.pid)
                await self._listen(process)
                await process.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._process = None
            with anyio.CancelScope(shield=True):
                await self._end(process)
                await process.aclose()
        assert process.returncode is not None
        return process.returncode

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        while True:
            try:
                line = await lines.receive_until(b"\n", _MAX_LINE_BYTES)
            except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError):
                return
            try:
                event = read_event(line)
            except ValidationError:
                log.warning("the learner wrote something that is no event: %r", line[:200])
                continue
            self._take(event)
            self._on_event(event)

    def _take(self, event: Event) -> None:
        record = self.record
        match event:
            case Started(step=step):
                self._started_once = True
                record.state, record.step = "learning", step
            case Progress(step=step):
                record.state, record.step = "learning", step
            case Waiting():
                self._started_once = True
                record.state = "waiting"
            case Published():
                self._crashes_in_a_row = 0
            case Stopped(step=step):
                record.step = step

    async def _wait_to_restart(self, status: int) -> None:
        delay_s = min(self._backoff_s * 2**self._crashes_in_a_row, 30.0)
        self._crashes_in_a_row += 1
        self.record.num_restarts += 1
        self.record.state = "restarting"
        reason = self._describe_end(status)
        log.info("the learner %s; restarting it in %.1f s", reason, delay_s)
        self._on_event(Restarting(reason=reason, delay_s=delay_s))
        with anyio.move_on_after(delay_s):
            await self._stop_requested.wait()

    async def _send(self, command: Command) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.stdin.send(command_line(command))

    async def _end(self, process: Process) -> None:
        """Ask, then insist: end of file, SIGTERM, SIGKILL to the whole session."""
        if process.returncode is None:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                assert process.stdin is not None
                await process.stdin.send(command_line(Stop()))
                await process.stdin.aclose()
            for wait_s, insist in ((self._grace_s, signal.SIGTERM), (5.0, signal.SIGKILL)):
                with anyio.move_on_after(wait_s):
                    await process.wait()
                if process.returncode is not None:
                    break
                log.warning("the learner did not stop in %.0f s: %s", wait_s, insist.name)
                _signal_group(process, insist)
            await process.wait()
        # Children of a learner that crashed would hold its devices and its memory.
        _signal_group(process, signal.SIGKILL)

    async def _watch_memory(self, pid: int) -> None:
        while True:
            with contextlib.suppress(psutil.Error):
                learner = psutil.Process(pid)
                members = [learner, *learner.children(recursive=True)]
                resident_mib = sum(member.memory_info().rss for member in members) / 2**20
                self.record.peak_memory_mib = max(self.record.peak_memory_mib, resident_mib)
            await anyio.sleep(1.0)

    def _describe_end(self, status: int) -> str:
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"crashed with exit status {status} (see {str(self._log_path)!r})"


def _signal_group(process: Process, number: signal.Signals) -> None:
    """Signal the learner's session; a group that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
