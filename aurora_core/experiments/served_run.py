"""`aurora run` as a child process, without traffic of its own, for as long as a block lasts."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from aurora_core.config import TrackingSection
from aurora_core.engine_process.ports import free_port
from aurora_core.errors import BackendError, ConfigError
from aurora_core.experiments.server_gone import ServerGone

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins

_POLL_S = 0.1
_GRACE_S = 60.0
"""Seconds that a run has to wind down before it is killed."""
_START_S = 900.0
_ANSWER_S = 60.0
"""Seconds that a run has for a plain question, however busy it is."""


def as_server(config: RunConfig, plugins: Plugins, *, run_dir: Path, seed: int) -> RunConfig:
    """Return a configuration that serves until stopped, on a port that is known beforehand.

    Args:
        config: whatever `aurora run` takes; its traffic, its end, its measurement and its tracking
            are left out.
        plugins: loaded plugins.
        run_dir: of this run.
        seed: of this run.

    Raises:
        ConfigError: the backend cannot be told a port.
    """
    backend = config.backend
    if "port" not in plugins.resolve("backends", backend.name).Config.model_fields:
        raise ConfigError(
            f"an experiment must know where its engine answers, and backend {backend.name!r} has "
            "no option `port`; choose another backend"
        )
    return config.model_copy(
        update={
            "backend": backend.model_copy(update={"port": free_port()}),
            "traffic": None,
            "requests": None,
            "duration_s": None,
            "final_bench": None,
            "tracking": TrackingSection(enabled=False),
            "run_dir": run_dir,
            "seed": seed,
        }
    )


@contextlib.asynccontextmanager
async def serve(
    config: RunConfig, *, command: Sequence[str] = ("aurora_core", "run")
) -> AsyncIterator[str]:
    """Start `aurora run`, yield its base URL once it answers, and end it with Ctrl-C's effect.

    Beside the run directory lie `NAME.yaml`, the configuration, and `NAME.log`, what was printed.
    The run ends with this process, however that ends.

    Args:
        config: from `as_server`.
        command: what `python -m` starts; the path of the configuration follows.

    Raises:
        BackendError: it does not come up; the message has its last line.
        ServerGone: it ends before the block does, which is cancelled then, or answers nothing at
            the end of the block because it is winding down; the message has its last line too.
    """
    folder, name = config.run_dir.absolute().parent, config.run_dir.name
    folder.mkdir(parents=True, exist_ok=True)
    path, log_path = folder / f"{name}.yaml", folder / f"{name}.log"
    path.write_text(config.to_yaml(), encoding="utf-8")
    # The guard of engines ends any process when its parent goes.
    guard = [sys.executable, "-m", "aurora_core.engine_process.guard", str(_GRACE_S)]
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *guard,
            *(sys.executable, "-m", *command, str(path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{config.backend.options['port']}"
    gone = False
    try:
        await _until_it_answers(process, url, log_path)
        try:
            async with asyncio.timeout(None) as lasting:
                watching = asyncio.create_task(_expire_with(process, lasting))
                try:
                    yield url
                    async with httpx.AsyncClient(trust_env=False, timeout=_ANSWER_S) as client:
                        gone = not await _answers(client, url)
                finally:
                    watching.cancel()
        except TimeoutError:
            if not lasting.expired():
                raise
            gone = True
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
    if gone:
        raise ServerGone(
            f"`aurora run` ended before everything was asked, {_last_words(process, log_path)}"
        )


async def _expire_with(process: asyncio.subprocess.Process, lasting: asyncio.Timeout) -> None:
    await process.wait()
    lasting.reschedule(asyncio.get_running_loop().time())


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return (await client.get(f"{url}/v1/models")).status_code == 200
    return False


async def _until_it_answers(process: asyncio.subprocess.Process, url: str, log_path: Path) -> None:
    waited_since = time.monotonic()
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            if time.monotonic() - waited_since > _START_S:
                raise BackendError(
                    f"`aurora run` does not answer at {url} within {_START_S:.0f} s; "
                    f"{str(log_path)!r} says what it does"
                )
            if process.returncode is not None:
                raise BackendError(f"`aurora run` ended by itself {_last_words(process, log_path)}")
            if await _answers(client, url):
                return
            await asyncio.sleep(_POLL_S)


def _last_words(process: asyncio.subprocess.Process, log_path: Path) -> str:
    lines = log_path.read_text("utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    return f"with status {process.returncode}: {last}; all of it is in {str(log_path)!r}"
