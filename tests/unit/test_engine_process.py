"""Engines of other environments as children: started again, nothing left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import anyio
import pytest

from aurora_core.engine_process.server import ServerProcess
from aurora_core.engine_process.supervisor import EngineSupervisor
from aurora_core.errors import BackendError

GUARD = [sys.executable, "-m", "aurora_core.engine_process.guard"]

FAMILY = """
    import pathlib, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path(sys.argv[1]).write_text(str(child.pid))
    time.sleep(600)
"""


async def launch(tmp_path: Path, code: str, *arguments: str, grace_s: float = 5.0) -> ServerProcess:
    return await ServerProcess.launch(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        name="the fake server",
        environment={},
        log_path=tmp_path / "logs" / "engine.log",
        grace_s=grace_s,
    )


async def until(condition) -> None:
    with anyio.fail_after(20):
        while not condition():
            await anyio.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


async def test_the_end_of_an_engine_ends_its_children(tmp_path: Path) -> None:
    note = tmp_path / "child"
    server = await launch(tmp_path, FAMILY, str(note))
    await until(lambda: note.is_file() and note.read_text())
    child = int(note.read_text())
    await server.end()
    assert server.returncode is not None
    await until(lambda: is_gone(child))


def test_an_engine_ends_with_a_controller_that_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "child"
    guard = subprocess.Popen(
        [*GUARD, "5", sys.executable, "-c", textwrap.dedent(FAMILY), str(note)],
        stdin=subprocess.PIPE,
    )

    async def run() -> None:
        await until(lambda: note.is_file() and note.read_text())
        assert guard.stdin is not None
        guard.stdin.close()  # what the kernel does for a process that was killed
        await until(lambda: is_gone(int(note.read_text())))

    anyio.run(run)
    assert guard.wait(10) == 128 + signal.SIGTERM


async def test_an_engine_that_ignores_the_request_to_stop_is_killed(tmp_path: Path) -> None:
    code = """
        import pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path(sys.argv[1]).touch()
        time.sleep(600)
    """
    note = tmp_path / "deaf"
    server = await launch(tmp_path, code, str(note), grace_s=0.1)
    await until(note.is_file)
    await server.end()
    assert server.returncode == 128 + signal.SIGKILL


async def test_the_own_sentence_of_an_in_engine_half_is_what_is_told(tmp_path: Path) -> None:
    code = """
        from aurora_core.errors import BackendError
        raise BackendError("set the switch to 0")
    """
    server = await launch(tmp_path, code)

    async def never() -> bool:
        return False

    with pytest.raises(BackendError, match=r"^set the switch to 0$"):
        await server.wait_healthy(never, 20, every_s=0.02)
    await server.end()


async def test_the_first_error_in_the_log_is_told_with_its_place(tmp_path: Path) -> None:
    code = """
        import sys
        sys.stderr.write("ValueError: no room for the cache\\nRuntimeError: a worker died\\n")
        sys.exit(1)
    """
    server = await launch(tmp_path, code)
    await server.wait()
    expected = r"the fake server ended with exit status 1 \(ValueError: no room .*engine\.log"
    assert re.match(expected, server.describe_end())
    await server.end()


async def test_a_server_that_never_answers_is_told_apart(tmp_path: Path) -> None:
    server = await launch(tmp_path, "import time; time.sleep(600)")

    async def never() -> bool:
        return False

    with pytest.raises(BackendError, match=r"not ready within 0\.05 s"):
        await server.wait_healthy(never, 0.05, every_s=0.01)
    await server.end()


class Launches:
    """Starts engines of which the first few end by themselves."""

    def __init__(self, tmp_path: Path, *, num_failing: int) -> None:
        self.tmp_path, self.num_failing = tmp_path, num_failing
        self.started: list[ServerProcess] = []

    async def __call__(self) -> ServerProcess:
        code = "import os, pathlib, sys, time; "
        code += "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
        if len(self.started) < self.num_failing:
            code = "raise SystemExit(3)"
        note = self.tmp_path / f"engine-{len(self.started)}"
        server = await launch(self.tmp_path, code, str(note))
        self.started.append(server)
        return server


async def test_an_engine_that_dies_is_started_again(tmp_path: Path) -> None:
    launches, told = Launches(tmp_path, num_failing=0), []
    supervisor = EngineSupervisor(launches, first_delay_s=0.01, on_end=told.append)
    await supervisor.start()
    first = await supervisor.ready()
    note = tmp_path / "engine-0"
    await until(lambda: note.is_file() and note.read_text())
    os.kill(int(note.read_text()), signal.SIGKILL)
    await until(lambda: supervisor.num_restarts == 1)
    assert await supervisor.ready() is not first
    assert "was killed by SIGKILL" in told[0]
    await supervisor.stop()
    assert launches.started[-1].returncode is not None
    with pytest.raises(BackendError, match="not running"):
        await supervisor.ready()


async def test_an_engine_that_keeps_dying_is_given_up_with_its_reason(tmp_path: Path) -> None:
    launches = Launches(tmp_path, num_failing=100)
    supervisor = EngineSupervisor(launches, max_restarts=2, first_delay_s=0.01)
    await supervisor.start()
    await until(lambda: len(launches.started) == 3)
    await launches.started[-1].wait()
    await anyio.sleep(0.1)
    with pytest.raises(BackendError, match="ended with exit status 3"):
        await supervisor.ready()
    await supervisor.stop()
    assert len(launches.started) == 3


async def test_every_start_in_a_row_waits_twice_as_long_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """`asyncio`, whose `sleep` notes the time instead of spending it."""

        def __init__(self) -> None:
            self.delays: list[float] = []

        def __getattr__(self, name: str) -> object:
            return getattr(asyncio, name)

        async def sleep(self, delay_s: float) -> None:
            self.delays.append(delay_s)

    clock = Clock()
    monkeypatch.setattr("aurora_core.engine_process.supervisor.asyncio", clock)
    launches = Launches(tmp_path, num_failing=100)
    supervisor = EngineSupervisor(
        launches, max_restarts=4, first_delay_s=1.0, longest_delay_s=5.0, stable_s=600.0
    )
    await supervisor.start()
    await until(lambda: len(launches.started) == 5)
    await supervisor.stop()
    assert clock.delays == [1.0, 2.0, 4.0, 5.0]


async def test_whoever_asks_during_a_restart_waits_for_it(tmp_path: Path) -> None:
    launches = Launches(tmp_path, num_failing=1)
    supervisor = EngineSupervisor(launches, first_delay_s=0.01)
    await supervisor.start()
    first = launches.started[0]
    await first.wait()
    await supervisor.noticed_end()
    assert await supervisor.ready() is not first
    await supervisor.stop()
