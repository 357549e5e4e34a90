"""The process between the controller and an engine: it ends the engine when the controller goes.

    python -m aurora_core.engine_process.guard GRACE_S PROGRAM [ARGUMENT...]

stdin is a pipe that the controller holds. End of file, or SIGTERM, means: SIGTERM to the engine,
SIGKILL after GRACE_S seconds to whatever is left of it and of its children. The exit status is the
engine's, or 128 and the number of the signal that killed it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import psutil


def main(arguments: Sequence[str]) -> int:
    """Run the engine named on the command line to its end; return the exit status."""
    grace_s, command = float(arguments[0]), list(arguments[1:])
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    try:
        engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]!r}: {error.strerror}\n")
        return 127
    threading.Thread(target=_wait_for_end_of_file, args=(asked,), daemon=True).start()
    threading.Thread(target=_wait_for_engine, args=(engine, asked), daemon=True).start()
    asked.wait()
    family = _descendants(engine.pid)
    if engine.poll() is None:
        engine.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine.wait(grace_s)
    _kill(engine.pid, family)
    status = engine.wait()
    return status if status >= 0 else 128 - status


def _wait_for_end_of_file(asked: threading.Event) -> None:
    with contextlib.suppress(OSError):  # no stdin at all is as good as a closed one
        while os.read(0, 4096):
            pass
    asked.set()


def _wait_for_engine(engine: subprocess.Popen[bytes], asked: threading.Event) -> None:
    engine.wait()
    asked.set()


def _descendants(pid: int) -> list[psutil.Process]:
    """Return the children of a process at any depth, those in sessions of their own included."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(session: int, family: Sequence[psutil.Process]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # psutil refuses when the number has gone to another process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
