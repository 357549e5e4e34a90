"""A storm of swaps: do requests fail, do answers change, do they halt?

    8 clients, one answer after the other ------------------------------------------>
    phases       calm       storm       calm       storm       ...   of equal length
    swaps                   | | | | |              | | | | |         one every few seconds

The versions of a run take turns, by the command that `aurora promote` gives: read from disk, checked
and swapped by the controller as any other. Every answer is compared with the same prompt's before
the first phase, without speculation. Calm and storm alternate, so that whatever else the machine
does falls on both.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core.controller.control_socket import Promote, give_command
from aurora_core.controller.run_directory import read_lines
from aurora_core.errors import AuroraError, ConfigError
from aurora_core.experiments.arms import ARMS, configure
from aurora_core.experiments.served_run import as_server, serve
from aurora_core.report.document import percentile
from aurora_core.traffic.completion import Completion, RequestFailed
from aurora_core.traffic.endpoint import Endpoint, RequestSettings
from aurora_core.traffic.prompts import Prompt, open_prompts
from aurora_core.versions import RunState, VersionStore, write_run_state

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class StormPlan:
    """How long, how often, how many."""

    phase_s: float = 60.0
    num_storms: int = 5
    """Storms; as many calm phases lie before them."""
    swap_every_s: float = 5.0
    concurrency: int = 8
    max_tokens: int = 96
    num_prompts: int = 24
    """Different prompts; they are asked again and again."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """All calm phases together, or all storms. Milliseconds between two chunks of an answer."""

    num_gaps: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StormReport:
    """What came of it."""

    plan: StormPlan
    versions: tuple[int, ...]
    num_requests: int
    num_failed: int
    failures: tuple[str, ...]
    num_different: int
    """Answers that are not those without speculation, token by token."""
    num_swaps: int
    num_failed_swaps: int
    stall_ms_p99: float | None
    """Time for which decoding stood still, as the engine reported."""
    stall_ms_max: float | None
    acceptance_length: float | None
    """Of all requests: 1.0 would say that no drafter took part."""
    calm: PhaseFigures
    storm: PhaseFigures

    @property
    def p99_ratio(self) -> float | None:
        """P99 of the gaps in storms / P99 of those in calm phases."""
        if self.storm.p99_ms is None or not self.calm.p99_ms:
            return None
        return self.storm.p99_ms / self.calm.p99_ms


@dataclass(slots=True)
class _Seen:
    """What the clients saw so far."""

    expected: dict[str, tuple[int, ...]] = field(default_factory=dict)
    arrivals: list[tuple[float, ...]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    num_requests: int = 0
    num_different: int = 0
    num_steps: int = 0
    num_accepted: int = 0

    def add(self, prompt: Prompt, completion: Completion) -> None:
        self.num_requests += 1
        self.arrivals.append(completion.arrivals_s)
        self.num_different += completion.token_ids != self.expected[prompt.text]
        if completion.speculation is not None:
            self.num_steps += completion.speculation.num_steps
            self.num_accepted += sum(completion.speculation.accepted_per_position)


async def storm(
    config: RunConfig,
    plugins: Plugins,
    plan: StormPlan,
    *,
    source: Path,
    run_dir: Path,
    note: Callable[[str], None] = print,
) -> StormReport:
    """Serve the versions of a run, swap them again and again, and measure.

    Args:
        config: of the engine and the drafters.
        plugins: loaded plugins.
        plan: sizes.
        source: directory of the run whose versions take turns.
        run_dir: new; of the run that serves.
        note: told in a sentence what begins.

    Raises:
        ConfigError: fewer than two versions, or the run directory exists.
        AuroraError: the run does not come up, or does not last.
    """
    versions = lay_out_versions(source, run_dir)
    prompts = list(
        open_prompts(
            domains=config.traffic.domains if config.traffic else None,
            seed=plan.seed,
            num_prompts=plan.num_prompts,
        ).prompts()
    )
    # Whatever is live stays until the next command: nothing else swaps.
    config = as_server(configure(ARMS["static"], config), plugins, run_dir=run_dir, seed=plan.seed)
    seen = _Seen()
    phases: list[tuple[float, float, bool]] = []
    failed_swaps: list[str] = []
    async with serve(config) as url, Endpoint(url) as endpoint:
        note(f"answers of {len(prompts)} prompts without speculation")
        for prompt in prompts:
            settings = RequestSettings(max_tokens=plan.max_tokens, drafter="none", record=False)
            plain = await endpoint.complete(prompt, settings)
            seen.expected[prompt.text] = plain.token_ids or ()
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            queue = itertools.cycle(prompts)
            for _ in range(plan.concurrency):
                tasks.create_task(_ask(endpoint, queue, plan, seen, ending))
            turns = itertools.cycle(versions)
            for number in range(2 * plan.num_storms):
                stormy = number % 2 == 1
                note(
                    f"phase {number + 1} of {2 * plan.num_storms}: {'storm' if stormy else 'calm'}"
                )
                began = time.perf_counter()
                if stormy:
                    await _swap(run_dir, turns, plan, failed_swaps)
                else:
                    await asyncio.sleep(plan.phase_s)
                phases.append((began, time.perf_counter(), stormy))
            ending.set()
    return _report(plan, versions, seen, phases, failed_swaps, run_dir)


def lay_out_versions(source: Path, run_dir: Path) -> tuple[int, ...]:
    """Copy the two newest versions of a run into a new run directory, the older one live.

    Raises:
        ConfigError: there are fewer than two, or the new directory exists.
        CheckpointError: one of them is damaged.
    """
    import shutil

    found = VersionStore(source / "versions")
    numbers = found.numbers()[-2:]
    if len(numbers) < 2:
        raise ConfigError(
            f"the run in {str(source)!r} has {len(numbers)} versions, and a storm needs two that "
            "take turns; let it run longer"
        )
    if run_dir.exists():
        raise ConfigError(f"{str(run_dir)!r} exists; name a new folder for the run that serves")
    for number in numbers:
        found.verify(number)
        folder = found.directory(number)
        shutil.copytree(folder, run_dir / "versions" / folder.name)
    write_run_state(run_dir / "state.json", RunState(champion=numbers[0], pinned=True))
    return numbers[::-1]


async def _ask(
    endpoint: Endpoint,
    prompts: itertools.cycle[Prompt],
    plan: StormPlan,
    seen: _Seen,
    ending: asyncio.Event,
) -> None:
    settings = RequestSettings(max_tokens=plan.max_tokens, record=False)
    while not ending.is_set():
        prompt = next(prompts)
        try:
            seen.add(prompt, await endpoint.complete(prompt, settings))
        except RequestFailed as failure:
            seen.num_requests += 1
            seen.failures.append(str(failure))
            await asyncio.sleep(0.5)  # a server that is gone refuses at once


async def _swap(
    run_dir: Path, turns: itertools.cycle[int], plan: StormPlan, failed: list[str]
) -> None:
    """Swap at once and then every few seconds, until the phase is over."""
    began = time.perf_counter()
    for number in itertools.count():
        wait_s = began + number * plan.swap_every_s - time.perf_counter()
        if (number + 1) * plan.swap_every_s > plan.phase_s:
            await asyncio.sleep(max(began + plan.phase_s - time.perf_counter(), 0.0))
            return
        await asyncio.sleep(max(wait_s, 0.0))
        try:
            await asyncio.to_thread(give_command, run_dir, Promote(version=next(turns)))
        except AuroraError as error:
            failed.append(str(error))


def _report(
    plan: StormPlan,
    versions: Sequence[int],
    seen: _Seen,
    phases: Sequence[tuple[float, float, bool]],
    failed_swaps: Sequence[str],
    run_dir: Path,
) -> StormReport:
    lines = read_lines(run_dir / "verdicts.jsonl")
    stalls = [line["receipt"]["stall_ms"] for line in lines if "receipt" in line]
    return StormReport(
        plan=plan,
        versions=tuple(sorted(versions)),
        num_requests=seen.num_requests,
        num_failed=len(seen.failures),
        failures=tuple(seen.failures[:10]),
        num_different=seen.num_different,
        num_swaps=len(stalls),
        num_failed_swaps=len(failed_swaps),
        stall_ms_p99=percentile(stalls, 99),
        stall_ms_max=max(stalls, default=None),
        acceptance_length=1 + seen.num_accepted / seen.num_steps if seen.num_steps else None,
        calm=gap_figures(seen.arrivals, [(a, b) for a, b, stormy in phases if not stormy]),
        storm=gap_figures(seen.arrivals, [(a, b) for a, b, stormy in phases if stormy]),
    )


def gap_figures(
    arrivals: Sequence[Sequence[float]], phases: Sequence[tuple[float, float]]
) -> PhaseFigures:
    """Return the gaps between chunks of which the later one arrived within some phases.

    Args:
        arrivals: of each answer, in seconds of one clock.
        phases: (begin, end), on the same clock.
    """
    gaps = [
        (later - earlier) * 1000
        for answer in arrivals
        for earlier, later in pairwise(answer)
        if any(begin <= later < end for begin, end in phases)
    ]
    return PhaseFigures(
        num_gaps=len(gaps),
        p50_ms=percentile(gaps, 50),
        p95_ms=percentile(gaps, 95),
        p99_ms=percentile(gaps, 99),
        max_ms=max(gaps, default=None),
    )


def as_markdown(report: StormReport) -> str:
    """Return the report as a table and two lines of text."""

    def cells(figures: PhaseFigures) -> str:
        values = (figures.p50_ms, figures.p95_ms, figures.p99_ms, figures.max_ms)
        texts = ["-" if value is None else f"{value:.1f}" for value in values]
        return " | ".join([str(figures.num_gaps), *texts])

    ratio = report.p99_ratio
    stall = "-" if report.stall_ms_p99 is None else f"{report.stall_ms_p99:.1f} ms"
    length = "-" if report.acceptance_length is None else f"{report.acceptance_length:.2f}"
    return "\n".join(
        [
            "| phases | gaps | P50 ms | P95 ms | P99 ms | longest ms |",
            "| --- | --- | --- | --- | --- | --- |",
            f"| calm | {cells(report.calm)} |",
            f"| storm | {cells(report.storm)} |",
            "",
            f"P99 in storms / P99 in calm: {'-' if ratio is None else f'{ratio:.2f}'}. "
            f"{report.num_swaps} swaps, {report.num_failed_swaps} failed; decoding stood still for "
            f"{stall} (P99).",
            f"{report.num_requests} requests, {report.num_failed} failed, "
            f"{report.num_different} answers different; acceptance length {length}.",
        ]
    )
