"""The command `aurora bench`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from itertools import islice
from pathlib import Path

from rich.console import Console

from aurora_core import wire
from aurora_core.bench.measure import BATCH_SIZES, BenchReport, compare_drafters
from aurora_core.bench.pairs import num_pairs
from aurora_core.bench.table import render_comparison, render_report
from aurora_core.errors import ConfigError
from aurora_core.traffic.endpoint import Drafter
from aurora_core.traffic.lossless import NEAR_TIE_GAP
from aurora_core.traffic.progress import ProgressDisplay
from aurora_core.traffic.prompts import open_prompts
from aurora_core.traffic.results import check_writable, write_json

Serve = Callable[[], AbstractAsyncContextManager[str]]
"""Starts a server and yields its base URL; stops it at the end."""


def bench_command(
    url: str | None = None,
    *,
    serve: Serve | None = None,
    variants: Mapping[str, Serve] | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    repeats: int = 3,
    num_prompts: int = 32,
    max_tokens: int = 128,
    prompts: Path | None = None,
    domains: Sequence[str] | None = None,
    seed: int = 0,
    drafter: Drafter = "live",
    model: str | None = None,
    timeout_s: float = 600.0,
    near_tie_gap: float = NEAR_TIE_GAP,
    out: Path | None = None,
    console: Console | None = None,
) -> dict[str, BenchReport]:
    """Measure speculation at several batch sizes, print the table and write the results.

    Args:
        url: base URL of a running engine of Aurora; or else
        serve: starts one for the duration of the benchmark; or else
        variants: name of a drafter -> starts the engine that serves it. All of them are measured
            on the same prompts, interleaved, against the same runs without speculation.
        batch_sizes: numbers of concurrent requests.
        repeats: least number of pairs of runs per batch size.
        num_prompts: held-out prompts to measure with.
        max_tokens: output tokens per request.
        prompts: JSONL file, taken as it is; the held-out side of the generator without one.
        domains: domains of the generator; None takes all.
        seed: of the generator.
        drafter: `live`, or a resident version.
        model: name of the model; None takes the first one the server has.
        timeout_s: longest time for one answer.
        near_tie_gap: greatest gap of log-probabilities that counts as a near-tie.
        out: file for the results: a report, or with `variants` one for each name.
        console: where to print.

    Returns:
        A report for each variant; under the name "" without `variants`.

    Raises:
        ConfigError: bad arguments, prompts or results file.
        BackendError: no server, not one of Aurora's, or no pair of runs succeeded.
    """
    if [url, serve, variants].count(None) != 2:
        raise ConfigError("a benchmark needs either the URL of a server or a run to serve from")
    console = console or Console()
    source = open_prompts(prompts, domains=domains, seed=seed, split=None if prompts else "holdout")
    chosen = list(islice(source.prompts(), num_prompts))
    if out is not None:
        check_writable(out)

    def stranger() -> AbstractAsyncContextManager[str]:
        return nullcontext(str(url))

    servers: Mapping[str, Serve] = variants or {"": serve or stranger}

    async def measure() -> dict[str, BenchReport]:
        total = sum(num_pairs(size, len(chosen), repeats) for size in batch_sizes if size > 0)
        unit = "rounds" if variants else "pairs of runs"
        display = ProgressDisplay("bench", total=total, unit=unit, console=console)
        async with AsyncExitStack() as stack:
            addresses = {
                name: await stack.enter_async_context(server()) for name, server in servers.items()
            }
            with display:
                return await compare_drafters(
                    addresses,
                    chosen,
                    batch_sizes=batch_sizes,
                    repeats=repeats,
                    max_tokens=max_tokens,
                    drafter=drafter,
                    model=model,
                    api_key=os.environ.get("AURORA_API_KEY"),
                    timeout_s=timeout_s,
                    near_tie_gap=near_tie_gap,
                    settings={"prompts": source.description, "seed": seed},
                    on_pair=lambda size, _: display.advance(f"batch size {size}"),
                )

    reports = asyncio.run(measure())
    rendered = render_comparison(reports) if variants else render_report(reports[""])
    for part in rendered:
        console.print(part)
    if out is not None:
        documents = {name: wire.to_dict(report) for name, report in reports.items()}
        write_json(out, {"variants": documents} if variants else documents[""])
        console.print(f"results written to {out}", soft_wrap=True)
    return reports
