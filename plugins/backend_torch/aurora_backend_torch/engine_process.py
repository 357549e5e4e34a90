"""The engine as a child process of the controller: started, waited for and reaped.

    stdin   held open by the controller; end of file means "stop cleanly", also when it died
    stdout  engine -> controller    one JSON event per line: ready, stopped
    stderr  its log                 appended to logs/engine.log

It runs in a session of its own, so that Ctrl-C in a terminal reaches the controller alone, which
then ends its children in order.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from aurora_backend_torch.launch import USER_ERROR
from aurora_core.errors import BackendError

logger = logging.getLogger(__name__)

_MAX_LINE_BYTES = 1 << 20
_TERMINATE_WAIT_S = 5.0
_NOTICE_S = 0.5


class EngineProcess:
    """One engine process. Create it with `launch`."""

    def __init__(self, process: Process, log_path: Path, log_start: int) -> None:
        self._process = process
        self._log_path = log_path
        self._log_start = log_start

    @classmethod
    async def launch(
        cls, command: Sequence[str], *, environment: Mapping[str, str], log_path: Path
    ) -> EngineProcess:
        """Start the process.

        Args:
            command: program and arguments.
            environment: added to the controller's own environment.
            log_path: file that its stderr is appended to; its folder is created.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            process = await anyio.open_process(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
            return cls(process, log_path, log.tell())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def has_ended(self) -> bool:
        """Return whether the process is gone, allowing a broken connection to be noticed first."""
        with anyio.move_on_after(_NOTICE_S):
            await self._process.wait()
        return self._process.returncode is not None

    @property
    def returncode(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.returncode

    async def wait_ready(self, timeout_s: float) -> str:
        """Return the engine's address once it answers.

        Raises:
            BackendError: it ended, with its own sentence if it left one, or took too long.
        """
        assert self._process.stdout is not None
        lines = BufferedByteReceiveStream(self._process.stdout)
        with anyio.move_on_after(timeout_s):
            while True:
                try:
                    line = await lines.receive_until(b"\n", _MAX_LINE_BYTES)
                except (anyio.EndOfStream, anyio.IncompleteRead):
                    await self._process.wait()
                    raise BackendError(self.describe_end()) from None
                try:
                    event = json.loads(line)
                except ValueError:
                    logger.warning("the engine wrote something that is no event: %r", line[:200])
                    continue
                if event.get("event") == "ready":
                    return str(event["url"])
        raise BackendError(
            f"the engine was not ready within {timeout_s:g} s; see {str(self._log_path)!r} or "
            "raise backend.start_timeout_s"
        )

    def describe_end(self) -> str:
        """Return why an ended process ended, as one sentence."""
        status = self._process.returncode
        last_line = self._last_line()
        if status == USER_ERROR and last_line:
            return last_line
        if status is not None and status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        else:
            how = f"ended with exit status {status}"
        detail = f" ({last_line})" if status and last_line else ""
        return f"the engine {how}{detail}; see {str(self._log_path)!r}"

    async def end(self, grace_s: float) -> None:
        """Ask, then insist: end of file, SIGTERM, SIGKILL. Callable twice; not cancellable."""
        with anyio.CancelScope(shield=True):
            if self._process.stdin is not None:
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._process.stdin.aclose()
            for wait_s, insist in (
                (grace_s, signal.SIGTERM),
                (_TERMINATE_WAIT_S, signal.SIGKILL),
            ):
                with anyio.move_on_after(wait_s):
                    await self._process.wait()
                if self._process.returncode is not None:
                    break
                logger.warning("the engine did not stop in %.0f s: %s", wait_s, insist.name)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, insist)
            await self._process.wait()
            await self._process.aclose()

    def _last_line(self) -> str:
        with self._log_path.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
