"""The measurements: a table over batch sizes, or one speed-up at the end of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aurora_core.bench.figures import BatchFigures, ConfigFigures, summarise_batch
from aurora_core.bench.machine import describe_machine
from aurora_core.bench.pairs import Contender, FailedPair, Pair, num_pairs, run_rounds
from aurora_core.errors import BackendError, ConfigError
from aurora_core.traffic.endpoint import Drafter, Endpoint
from aurora_core.traffic.lossless import NEAR_TIE_GAP, LosslessCheck, LosslessReport
from aurora_core.traffic.prompts.prompt import Prompt

BENCH_SCHEMA = 1
"""Version of the benchmark's results file."""

BATCH_SIZES = (1, 8, 16, 32)

OnPair = Callable[[int, int], None]
"""Called after every pair with its batch size and the number of pairs of that batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """A whole benchmark: what was measured, how and where."""

    schema: int
    url: str
    model: str
    created: float
    """Unix seconds."""
    wall_s: float
    machine: Mapping[str, str | int | float]
    """Of the process that measured."""
    settings: Mapping[str, object]
    batches: tuple[BatchFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupReport:
    """What speculation is worth at one batch size."""

    batch_size: int
    num_prompts: int
    otps_none: float
    """Median over runs, as `otps_speculative`; `speedup` is their ratio."""
    otps_speculative: float
    speedup: float
    speedup_low: float
    """5th percentile of the ratios of single pairs."""
    speedup_high: float
    """95th percentile of the ratios of single pairs."""
    acceptance_length: float
    none: ConfigFigures
    speculative: ConfigFigures
    lossless: LosslessReport


async def run_bench(
    url: str,
    prompts: Sequence[Prompt],
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    repeats: int = 3,
    max_tokens: int = 128,
    drafter: Drafter = "live",
    lineage: str = "",
    model: str | None = None,
    api_key: str | None = None,
    timeout_s: float = 600.0,
    near_tie_gap: float = NEAR_TIE_GAP,
    settings: Mapping[str, object] | None = None,
    on_pair: OnPair | None = None,
) -> BenchReport:
    """Measure one server with and without speculation; arguments as of `compare_drafters`."""
    reports = await compare_drafters(
        {"": url},
        prompts,
        batch_sizes=batch_sizes,
        repeats=repeats,
        max_tokens=max_tokens,
        drafter=drafter,
        lineage=lineage,
        model=model,
        api_key=api_key,
        timeout_s=timeout_s,
        near_tie_gap=near_tie_gap,
        settings=settings,
        on_pair=on_pair,
    )
    return reports[""]


async def compare_drafters(
    urls: Mapping[str, str],
    prompts: Sequence[Prompt],
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    repeats: int = 3,
    max_tokens: int = 128,
    drafter: Drafter = "live",
    lineage: str = "",
    model: str | None = None,
    api_key: str | None = None,
    timeout_s: float = 600.0,
    near_tie_gap: float = NEAR_TIE_GAP,
    settings: Mapping[str, object] | None = None,
    on_pair: OnPair | None = None,
) -> dict[str, BenchReport]:
    """Measure the drafters of several servers with one target, all interleaved, at batch sizes.

    Every prompt runs once without speculation and once with each drafter, one after the other, so
    that what a machine does over minutes meets all alike. Servers that are not asked are idle.
    Nothing of it is recorded in traces.

    Args:
        urls: name of a drafter -> base URL of the engine of Aurora that serves it.
        prompts: held-out prompts; every batch size goes through all of them.
        batch_sizes: numbers of concurrent requests.
        repeats: least number of pairs of runs per batch size.
        max_tokens: output tokens per request.
        drafter: `live`, or a resident version.
        lineage: whose drafter; empty where the servers have one lineage.
        model: name of the model; None takes the first one each server has.
        api_key: sent as a bearer token.
        timeout_s: longest time for one answer.
        near_tie_gap: see `LosslessCheck`.
        settings: further facts to keep in the reports, for example where the prompts come from.
        on_pair: called after every round, with the numbers of a single drafter.

    Returns:
        A report for each name, in the order given; they share the runs without speculation.

    Raises:
        ConfigError: no batch size, or one below 1 or above the number of prompts.
        BackendError: no server, not one of Aurora's, or half of the runs of a drafter or more
            failed.
    """
    _check_batch_sizes(batch_sizes, len(prompts))
    started, created = time.perf_counter(), time.time()
    batches: dict[str, list[BatchFigures]] = {name: [] for name in urls}
    async with AsyncExitStack() as stack:
        endpoints = {
            name: await stack.enter_async_context(
                Endpoint(url, model=model, api_key=api_key, timeout_s=timeout_s)
            )
            for name, url in urls.items()
        }
        for batch_size in batch_sizes:
            contenders = [
                Contender(
                    endpoint=endpoint,
                    drafter=drafter,
                    lineage=lineage,
                    check=LosslessCheck(endpoint, max_tokens=max_tokens, near_tie_gap=near_tie_gap),
                )
                for endpoint in endpoints.values()
            ]
            rounds = []
            async for pairs in run_rounds(
                contenders, prompts, batch_size=batch_size, repeats=repeats, max_tokens=max_tokens
            ):
                rounds.append(pairs)
                if on_pair is not None:
                    on_pair(batch_size, num_pairs(batch_size, len(prompts), repeats))
            for name, contender, outcomes in zip(
                urls, contenders, zip(*rounds, strict=True), strict=True
            ):
                batches[name].append(_figures(batch_size, contender, outcomes))
    facts = {
        "batch_sizes": list(batch_sizes),
        "repeats": repeats,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "drafter": drafter,
        "num_prompts": len(prompts),
        "near_tie_gap": near_tie_gap,
        **(settings or {}),
    }
    wall_s, machine = time.perf_counter() - started, describe_machine()
    return {
        name: BenchReport(
            schema=BENCH_SCHEMA,
            url=endpoint.url,
            model=endpoint.model,
            created=created,
            wall_s=wall_s,
            machine=machine,
            settings=facts,
            batches=tuple(batches[name]),
        )
        for name, endpoint in endpoints.items()
    }


def _figures(
    batch_size: int, contender: Contender, outcomes: Sequence[Pair | FailedPair]
) -> BatchFigures:
    """Sum up what one drafter did at one batch size."""
    pairs = [outcome for outcome in outcomes if isinstance(outcome, Pair)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, FailedPair)]
    # Most of them gone, as when the engine dies, the rest is no sample of what was asked for.
    if len(failures) >= max(len(pairs), 1):
        raise BackendError(
            f"{len(failures)} of {len(outcomes)} runs with batch size {batch_size} on "
            f"{contender.endpoint.url} failed, the last one with {failures[-1].reason}"
        )
    return summarise_batch(
        batch_size, pairs, failed_pairs=len(failures), lossless=contender.check.report
    )


async def measure_speedup(
    url: str,
    prompts: Sequence[Prompt],
    *,
    batch_size: int = 1,
    repeats: int = 1,
    max_tokens: int = 96,
    drafter: Drafter = "live",
    lineage: str = "",
    timeout_s: float = 600.0,
    near_tie_gap: float = NEAR_TIE_GAP,
    on_pair: OnPair | None = None,
) -> SpeedupReport:
    """Measure once what speculation is worth: the figures at the end of `aurora run`.

    Arguments and errors are those of `run_bench`.

    Raises:
        BackendError: also when all answers were too short to time.
    """
    report = await run_bench(
        url,
        prompts,
        batch_sizes=(batch_size,),
        repeats=repeats,
        max_tokens=max_tokens,
        drafter=drafter,
        lineage=lineage,
        timeout_s=timeout_s,
        near_tie_gap=near_tie_gap,
        on_pair=on_pair,
    )
    figures = report.batches[0]
    if figures.speedup is None:
        raise BackendError(
            f"the answers of the server at {report.url} are too short to measure a speed-up; "
            "use prompts with longer answers"
        )
    return SpeedupReport(
        batch_size=batch_size,
        num_prompts=len(prompts),
        otps_none=figures.speedup.otps_none,
        otps_speculative=figures.speedup.otps_speculative,
        speedup=figures.speedup.ratio,
        speedup_low=figures.speedup.low,
        speedup_high=figures.speedup.high,
        acceptance_length=figures.speculative.acceptance_length or 1.0,
        none=figures.none,
        speculative=figures.speculative,
        lossless=figures.lossless,
    )


def _check_batch_sizes(batch_sizes: Sequence[int], num_prompts: int) -> None:
    if not batch_sizes:
        raise ConfigError("there is no batch size to measure; name at least one, for example 1")
    for batch_size in batch_sizes:
        if batch_size < 1:
            raise ConfigError(f"{batch_size} is not a batch size; it must be at least 1")
        if batch_size > num_prompts:
            raise ConfigError(
                f"batch size {batch_size} needs as many different prompts, and there are only "
                f"{num_prompts}; add prompts or leave that batch size out"
            )
