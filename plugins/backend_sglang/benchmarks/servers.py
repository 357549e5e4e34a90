"""Servers to measure: SGLang with Aurora's half in it, and the same SGLang without speculation."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from aurora_backend_sglang.backend import SglangBackend
from aurora_backend_sglang.config import SglangBackendOptions
from aurora_backend_sglang.server_command import server_command, server_environment
from aurora_core.config import RunConfig
from aurora_core.controller.build import Parts, build_parts, plan_serving
from aurora_core.controller.run_directory import RunDirectory
from aurora_core.engine_process.ports import free_port
from aurora_core.engine_process.server import ServerProcess
from aurora_core.plugins import Plugins
from aurora_core.records import DraftVersion

NO_DRAFTS = {"custom_params": {"aurora": {"drafter": "none"}}}
"""Sampling parameters of a request that is decoded plainly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of `/generate`."""

    token_ids: tuple[int, ...]
    wall_s: float
    """From sending it, the prompt's time included."""
    num_steps: int
    num_accepted: int
    """Draft tokens; 0 from servers without Aurora's half."""


@dataclass(slots=True, kw_only=True)
class Server:
    """A running server."""

    url: str
    start_s: float
    """From launching it until it was healthy."""
    memory_mib: float
    """Proportional set size of all its processes after the start."""
    backend: SglangBackend | None = None
    """None without Aurora's half."""
    client: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(timeout=600.0))

    async def generate(
        self, prompt: Sequence[int], num_tokens: int, parameters: Mapping[str, Any] | None = None
    ) -> Answer:
        """Answer one prompt greedily, with as many tokens as are asked for."""
        sampling = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
        body = {"input_ids": list(prompt), "sampling_params": {**sampling, **(parameters or {})}}
        sent = time.perf_counter()
        response = await self.client.post(f"{self.url}/generate", json=body)
        wall_s = time.perf_counter() - sent
        answer = response.raise_for_status().json()
        [stats] = answer["meta_info"].get("aurora") or [{}]
        return Answer(
            token_ids=tuple(answer["output_ids"]),
            wall_s=wall_s,
            num_steps=stats.get("num_steps", 0),
            num_accepted=sum(stats.get("accepted_per_position", ())),
        )

    async def generate_all(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, parameters: Any = None
    ) -> list[Answer]:
        """Answer several prompts at once."""
        asked = (self.generate(prompt, num_tokens, parameters) for prompt in prompts)
        return list(await asyncio.gather(*asked))


def read_run(path: Path, overrides: Sequence[str]) -> tuple[Parts, RunDirectory]:
    """Return a run's parts and directory; its configuration must name this backend."""
    config = RunConfig.load(path, overrides)
    plugins = Plugins()
    plugins.load(config.plugins)
    return build_parts(config, plugins), RunDirectory(config.run_dir)


def options_of(parts: Parts, **changes: Any) -> SglangBackendOptions:
    """Return the run's options of the backend, changed."""
    options = parts.backend.options
    assert isinstance(options, SglangBackendOptions)
    return options.model_copy(update=changes)


@contextlib.asynccontextmanager
async def aurora_server(
    parts: Parts,
    directory: RunDirectory,
    folder: Path,
    *,
    version: DraftVersion | None,
    record: bool = True,
    **changes: Any,
) -> AsyncIterator[Server]:
    """Serve with Aurora's half; traces go below `folder`.

    Args:
        parts: of the run.
        directory: of the run, for its versions.
        folder: for logs and traces.
        version: to begin with; None begins with the placeholder.
        record: whether traces are written.
        changes: to the options of the backend.
    """
    backend = SglangBackend(options_of(parts, record=record, **changes))
    plan = plan_serving(parts, directory, initial=version, run_dir=folder)
    plan = replace(plan, sink_options={**plan.sink_options, "path": str(folder / "spool")})
    started = time.perf_counter()
    try:
        await backend.start(plan)
        supervisor = backend._supervisor
        assert supervisor is not None
        server = Server(
            url=backend.url,
            start_s=time.perf_counter() - started,
            memory_mib=memory_mib((await supervisor.ready()).pid),
            backend=backend,
        )
        yield server
        await server.client.aclose()
    finally:
        await backend.stop()


@contextlib.asynccontextmanager
async def plain_server(
    parts: Parts, directory: RunDirectory, folder: Path, **changes: Any
) -> AsyncIterator[Server]:
    """Serve with the same flags, without speculation and without Aurora's half."""
    options = options_of(parts, **changes)
    plan = plan_serving(parts, directory, initial=None, run_dir=folder)
    port = free_port(options.host)
    python = options.python.absolute()
    command = server_command(plan, options, drafter=Path("none"), port=port, python=python)
    environment = server_environment(options, settings_path=Path("none"), token="")
    environment |= {"AURORA_SGLANG_SETTINGS": ""}
    url = f"http://{options.host}:{port}"
    started = time.perf_counter()
    process = await ServerProcess.launch(
        without_speculation(command),
        name="SGLang",
        environment=environment,
        log_path=folder / "plain.log",
        grace_s=options.stop_timeout_s,
    )
    async with httpx.AsyncClient() as client:

        async def is_healthy() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return (await client.get(f"{url}/health", timeout=10.0)).status_code == 200
            return False

        try:
            await process.wait_healthy(is_healthy, options.start_timeout_s)
            start_s = time.perf_counter() - started
            server = Server(url=url, start_s=start_s, memory_mib=memory_mib(process.pid))
            yield server
            await server.client.aclose()
        finally:
            await process.end()


def without_speculation(command: Sequence[str]) -> list[str]:
    """Return a server's command line without what makes it speculate."""
    kept: list[str] = []
    skipping = False
    for word in command:
        skipping = word.startswith("--speculative") or (skipping and not word.startswith("--"))
        if not skipping:
            kept.append(word)
    return kept


def memory_mib(pid: int) -> float:
    """Return the proportional set size of a process and of all below it."""
    total, pending = 0, [pid]
    while pending:
        one = pending.pop()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                children = (task / "children").read_text().split()
                pending += [int(child) for child in children]
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024
