"""From no drafter to the first one: a swap into a placeholder beside a planned restart.

    python plugins/backend_sglang/benchmarks/first_day.py RUN.yaml --set run_dir=DIR --version 3

Either way, clients send one request after the other, the change is asked for in the middle, and
each client sends its next request as soon as a server takes it. A planned restart drains: requests
that run are finished, those that come wait for the new server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from servers import Server, aurora_server, plain_server, read_run
from serving import read_prompts


class Clients:
    """A few clients in a loop against whichever server is up."""

    def __init__(self, prompts: Sequence[Sequence[int]], settings: argparse.Namespace) -> None:
        self._prompts, self._settings = prompts, settings
        self.server: Server | None = None
        self.latencies: list[tuple[float, float]] = []
        """(sent, seconds until the answer was there)"""
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._num_running = 0
        self._number = 0

    def let_in(self, server: Server) -> None:
        """Send requests to a server from now on."""
        self.server = server
        self._open.set()

    async def drain(self) -> None:
        """Hold requests back, and return once none runs."""
        self._open.clear()
        while self._num_running:
            self._idle.clear()
            await self._idle.wait()

    async def run(self, until: Callable[[], bool]) -> None:
        """Send requests until it is enough."""
        while not until():
            sent = time.perf_counter()
            await self._open.wait()
            self._number += 1
            prompt = self._prompts[self._number % len(self._prompts)]
            self._num_running += 1
            assert self.server is not None
            await self.server.generate(prompt, self._settings.max_tokens)
            self._num_running -= 1
            self._idle.set()
            self.latencies.append((sent, time.perf_counter() - sent))


async def placeholder(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start with a placeholder and swap the first version in."""
    parts, directory = read_run(settings.config, settings.set)
    prompts = read_prompts(parts.target.path, parts.config, settings)
    async with aurora_server(parts, directory, folder, version=None) as server:
        clients = Clients(prompts, settings)
        clients.let_in(server)

        async def change() -> float:
            assert server.backend is not None
            return (await server.backend.swap(directory.store.verify(settings.version))).stall_ms

        figures = await around(clients, change, settings)
        return {"start_s": server.start_s, "memory_mib": server.memory_mib, **figures}


async def restart(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start without speculation, drain, and start again with the first version."""
    parts, directory = read_run(settings.config, settings.set)
    prompts = read_prompts(parts.target.path, parts.config, settings)
    clients = Clients(prompts, settings)
    version = directory.store.verify(settings.version)
    first = plain_server(parts, directory, folder)
    before = await first.__aenter__()
    clients.let_in(before)
    second = aurora_server(parts, directory, folder, version=version)
    after: list[Server] = []

    async def change() -> float:
        await clients.drain()
        drained = time.perf_counter()
        await first.__aexit__(None, None, None)
        after.append(await second.__aenter__())
        clients.let_in(after[0])
        return 1000 * (time.perf_counter() - drained)

    try:
        figures = await around(clients, change, settings)
    finally:
        await second.__aexit__(None, None, None)
    return {
        "start_s": before.start_s,
        "memory_mib": before.memory_mib,
        "second_start_s": after[0].start_s,
        "second_memory_mib": after[0].memory_mib,
        **figures,
    }


async def around(clients: Clients, change: Any, settings: argparse.Namespace) -> dict[str, Any]:
    """Have the clients send requests around a change; return what they saw of it."""
    ended: list[float] = []
    needed = settings.around

    def enough() -> bool:
        return bool(ended) and sum(sent > ended[0] for sent, _ in clients.latencies) >= needed

    running = [asyncio.create_task(clients.run(enough)) for _ in range(settings.clients)]
    while len(clients.latencies) < needed:
        await asyncio.sleep(0.05)
    began = time.perf_counter()
    stood_still_ms = await change()
    ended.append(time.perf_counter())
    await asyncio.gather(*running)
    during = [s for sent, s in clients.latencies if sent <= ended[0] and sent + s >= began]
    before = [s for sent, s in clients.latencies if sent + s < began]
    after = [s for sent, s in clients.latencies if sent > ended[0]]
    return {
        "change_s": ended[0] - began,
        "stood_still_ms": stood_still_ms,
        "requests_during": len(during),
        "latency_before_s": statistics.median(before),
        "latency_during_s": {"median": statistics.median(during), "max": max(during)},
        "latency_after_s": statistics.median(after),
    }


async def measure(settings: argparse.Namespace) -> dict[str, Any]:
    """Measure both ways, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "placeholder": await placeholder(settings, Path(folder) / "a"),
            "restart": await restart(settings, Path(folder) / "b"),
        }


def main() -> None:
    """Measure and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--version", type=int, required=True)
    parser.add_argument("--num-prompts", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--around", type=int, default=6, help="requests before and after, at least")
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
