"""Replay of prompts against any OpenAI-compatible server: `aurora replay`.

`ReplayDriver` is the part to embed; the rest of this module is the command around it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from aurora_core import wire
from aurora_core.errors import BackendError, ConfigError
from aurora_core.traffic.distribution import Distribution, acceptance_length
from aurora_core.traffic.driver import ReplayDriver, ReplaySettings
from aurora_core.traffic.endpoint import Endpoint
from aurora_core.traffic.progress import ProgressDisplay
from aurora_core.traffic.prompts import PromptSource, open_prompts
from aurora_core.traffic.prompts.generator import Order, Split
from aurora_core.traffic.results import (
    ReplayResult,
    ReplaySummary,
    check_writable,
    describe_result,
    summarise,
    write_json,
)

__all__ = [
    "Endpoint",
    "ReplayDriver",
    "ReplayResult",
    "ReplaySettings",
    "ReplaySummary",
    "replay_command",
    "summarise",
]

REPLAY_SCHEMA = 1
"""Version of the results file."""


def replay_command(
    url: str,
    *,
    prompts: Path | None = None,
    domains: Sequence[str] | None = None,
    order: Order = "mixed",
    split: Split | None = None,
    requests: int | None = None,
    concurrency: int = 4,
    rate: float | None = None,
    max_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    timeout_s: float = 300.0,
    seed: int = 0,
    model: str | None = None,
    record: bool | None = None,
    out: Path | None = None,
    keep_text: bool = False,
    console: Console | None = None,
) -> ReplaySummary:
    """Send prompts to a server, show progress and a summary, and write the results.

    Ctrl-C ends the replay early; what came back until then is summed up and written.

    Args:
        url: base URL of the server.
        prompts: JSONL file; the built-in generator without one.
        domains: domains of the generator; None takes all.
        order: `mixed` or `ordered` domains of the generator.
        split: side of the held-out split; None is the whole file, or training prompts.
        requests: how many; None takes the whole file, or 100 generated prompts.
        concurrency: requests in flight at once.
        rate: mean requests per second; None sends whenever there is room.
        max_tokens: output tokens per request.
        temperature: 0 is greedy.
        top_p: nucleus sampling.
        timeout_s: longest time for one answer.
        seed: of prompts, arrivals and sampling.
        model: name of the model; None takes the first one the server has.
        record: whether Aurora's engine may write traces; None leaves it to the engine.
        out: file for the results.
        keep_text: write the answers into `out` as well.
        console: where to print.

    Raises:
        ConfigError: bad arguments, prompts or results file.
        BackendError: no server, or not one request succeeded.
    """
    console = console or Console()
    if requests is None and prompts is None:
        requests = 100
    source = open_prompts(
        prompts, domains=domains, order=order, seed=seed, split=split, num_prompts=requests
    )
    try:
        settings = ReplaySettings(
            concurrency=concurrency,
            rate=rate,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            record=record,
        )
    except ValueError as error:
        raise ConfigError(f"the replay cannot be done as asked: {error}") from error
    if out is not None:
        check_writable(out)
    endpoint = Endpoint(
        url, model=model, api_key=os.environ.get("AURORA_API_KEY"), timeout_s=timeout_s
    )
    results, wall_s = asyncio.run(_replay(endpoint, source, settings, requests, console))
    summary = summarise(results, wall_s=wall_s)
    console.print(render_summary(summary))
    if out is not None:
        write_json(
            out,
            {
                "schema": REPLAY_SCHEMA,
                "url": endpoint.url,
                "model": endpoint.model,
                "prompts": source.description,
                "settings": asdict(settings),
                "summary": wire.to_dict(summary),
                "requests": [describe_result(one, with_text=keep_text) for one in results],
            },
        )
        console.print(f"results written to {out}", soft_wrap=True)
    if results and summary.failed == len(results):
        raise BackendError(
            f"none of {len(results)} requests to {endpoint.url} succeeded; the first one failed "
            f"with {results[0].error}"
        )
    return summary


async def _replay(
    endpoint: Endpoint,
    source: PromptSource,
    settings: ReplaySettings,
    requests: int | None,
    console: Console,
) -> tuple[list[ReplayResult], float | None]:
    total = source.num_prompts if requests is None else requests
    if requests is not None and source.num_prompts is not None:
        total = min(requests, source.num_prompts)
    results: list[ReplayResult] = []
    async with endpoint:
        driver = ReplayDriver(endpoint, islice(source.prompts(), total), settings)
        display = ProgressDisplay("replay", total=total, console=console)
        with display, _stop_on_interrupt(driver):
            async with contextlib.aclosing(driver.results()) as arriving:
                async for result in arriving:
                    results.append(result)
                    display.advance(_status(results))
    results.sort(key=lambda result: result.index)
    return results, driver.wall_s


@contextlib.contextmanager
def _stop_on_interrupt(driver: ReplayDriver) -> Iterator[None]:
    """Let the first Ctrl-C stop the driver and the second one interrupt as usual."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        driver.stop()
        loop.remove_signal_handler(signal.SIGINT)

    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or Windows
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _status(results: Sequence[ReplayResult]) -> str:
    recent = [result for result in results[-50:] if result.ok]
    parts = []
    if num_failed := sum(not result.ok for result in results):
        parts.append(f"{num_failed} failed")
    speeds = [result.otps for result in recent if result.otps is not None]
    if speeds:
        parts.append(f"{sum(speeds) / len(speeds):.1f} tokens/s")
    length = acceptance_length(result.aurora for result in recent)
    if length is not None:
        parts.append(f"acceptance length {length:.2f}")
    return ", ".join(parts)


def render_summary(summary: ReplaySummary) -> Table:
    """Return the table printed at the end of a replay, one row per domain and one for all."""
    table = Table(title=_title(summary), title_justify="left")
    table.add_column("domain")
    for heading in ("requests", "failed", "OTPS\nmean", "P50", "P05", "P95", "acceptance\nlength"):
        table.add_column(heading, justify="right")
    rows = [
        (name, domain.requests, domain.failed, domain.otps, domain.acceptance_length)
        for name, domain in summary.domains.items()
    ]
    if len(rows) != 1:
        rows.append(
            ("all", summary.requests, summary.failed, summary.otps, summary.acceptance_length)
        )
    for name, requests, failed, otps, length in rows:
        cells = (number(otps.mean), number(otps.p50), number(otps.p05), number(otps.p95))
        table.add_row(name, str(requests), str(failed), *cells, number(length, 2))
    return table


def _title(summary: ReplaySummary) -> str:
    parts = [f"{summary.requests} requests"]
    if summary.wall_s and summary.throughput is not None:
        parts.append(f"{summary.wall_s:.1f} s")
        parts.append(f"{summary.throughput:.1f} output tokens/s in all")
    parts.append(f"time to first token {milliseconds(summary.ttft_s)}")
    if summary.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in summary.failures.items())
        parts.append(f"failed: {kinds}")
    return "; ".join(parts)


def number(value: float | None, digits: int = 1) -> str:
    """Return a figure for a table; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def milliseconds(times_s: Distribution) -> str:
    """Return the median and the 95th percentile of some times."""
    if times_s.p50 is None or times_s.p95 is None:
        return "-"
    return f"{times_s.p50 * 1000:.0f} ms (P95 {times_s.p95 * 1000:.0f} ms)"
