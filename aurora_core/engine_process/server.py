"""One running engine: a server that was started under a guard, and its log."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import anyio
from anyio.abc import Process

from aurora_core.errors import BackendError

logger = logging.getLogger(__name__)

_GUARD_MODULE = "aurora_core.engine_process.guard"
_GUARD_MARGIN_S = 5.0
_NOTICE_S = 0.5
_MAX_LOG_BYTES = 1 << 20

_OWN_ERROR = re.compile(r"aurora_core\.errors\.\w+: (.+)")
"""The end of a traceback that an `AuroraError` of an in-engine half left in the engine's log."""
_ANY_ERROR = re.compile(r"(?:^|[\s:.])((?:\w+Error|\w+Exception): .+)")


class ServerProcess:
    """One engine process with its guard. Create it with `launch`."""

    def __init__(
        self, process: Process, *, name: str, log_path: Path, log_start: int, grace_s: float
    ) -> None:
        self._process, self._name, self._grace_s = process, name, grace_s
        self._log_path, self._log_start = log_path, log_start

    @classmethod
    async def launch(
        cls,
        command: Sequence[str],
        *,
        name: str,
        environment: Mapping[str, str],
        log_path: Path,
        grace_s: float,
    ) -> ServerProcess:
        """Start an engine.

        Args:
            command: program and arguments.
            name: what errors call it, for example `vLLM`.
            environment: added to the controller's own environment.
            log_path: file that stdout and stderr are appended to; its folder is created.
            grace_s: seconds that the engine has to stop by itself when it is asked to.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            start = log.tell()
            process = await anyio.open_process(
                [sys.executable, "-m", _GUARD_MODULE, str(grace_s), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        return cls(process, name=name, log_path=log_path, log_start=start, grace_s=grace_s)

    @property
    def pid(self) -> int:
        """Process id of the guard, which lives exactly as long as the engine."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status of the engine; None while it runs."""
        return self._process.returncode

    async def has_ended(self) -> bool:
        """Return whether the engine is gone, allowing a broken connection to be noticed first."""
        with anyio.move_on_after(_NOTICE_S):
            await self._process.wait()
        return self._process.returncode is not None

    async def wait(self) -> None:
        """Return once the engine is gone."""
        await self._process.wait()

    async def wait_healthy(
        self, is_healthy: Callable[[], Awaitable[bool]], timeout_s: float, *, every_s: float = 0.5
    ) -> None:
        """Return once the engine answers.

        Args:
            is_healthy: asks the server; False means not yet.
            timeout_s: seconds to wait at most.
            every_s: seconds between two questions.

        Raises:
            BackendError: it ended, with its own sentence if it left one, or took too long.
        """
        with anyio.move_on_after(timeout_s):
            while True:
                if self.returncode is not None:
                    raise BackendError(self.describe_end())
                if await is_healthy():
                    return
                await anyio.sleep(every_s)
        raise BackendError(
            f"{self._name} was not ready within {timeout_s:g} s; see {str(self._log_path)!r} or "
            "raise backend.start_timeout_s"
        )

    def describe_end(self) -> str:
        """Return why an ended engine ended, as one sentence."""
        lines = self._log_lines()
        for line in reversed(lines):
            if own := _OWN_ERROR.search(line):
                return own[1]
        status = self.returncode or 0
        number = -status if status < 0 else status - 128
        if number in set(signal.Signals):
            how = f"was killed by {signal.Signals(number).name}"
        else:
            how = f"ended with exit status {status}"
        errors = [found[1] for line in lines if (found := _ANY_ERROR.search(line))]
        # The first error is the cause; servers of several processes report its consequences later.
        detail = f" ({errors[0][:300]})" if errors else ""
        return f"{self._name} {how}{detail}; see {str(self._log_path)!r}"

    async def end(self) -> None:
        """Ask, then insist. Callable twice; not cancellable."""
        with anyio.CancelScope(shield=True):
            if self._process.stdin is not None:
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._process.stdin.aclose()
            with anyio.move_on_after(self._grace_s + _GUARD_MARGIN_S):
                await self._process.wait()
            if self._process.returncode is None:
                logger.warning("the guard of %s did not end it in time", self._name)
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()
            await self._process.aclose()

    def _log_lines(self) -> list[str]:
        with self._log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _MAX_LOG_BYTES))
            return log.read().decode(errors="replace").splitlines()
