"""A storm of swaps: do requests fail, do answers change, do they halt?

    8 clients, one answer after the other ------------------------------------------>
    phases       calm       storm       calm       storm       ...   of equal length
    swaps                   | | | | |              | | | | |         one every few seconds

The versions of a run take turns, by the command that `aurora promote` gives: read from disk,
checked and swapped by the controller as any other. Every answer is compared with the same prompt's
before the first phase, without speculation. Calm and storm alternate, so that whatever else the
machine does falls on both.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core.controller.control_socket import Promote, give_command
from aurora_core.controller.run_directory import read_lines
from aurora_core.errors import AuroraError, ConfigError
from aurora_core.experiments.arms import ARMS, configure
from aurora_core.experiments.plain_answers import plain_answer
from aurora_core.experiments.served_run import as_server, serve
from aurora_core.experiments.storm_report import StormPlan, StormReport, gap_figures
from aurora_core.report.document import percentile
from aurora_core.traffic.completion import Completion, RequestFailed
from aurora_core.traffic.endpoint import Endpoint, RequestSettings
from aurora_core.traffic.prompts import Prompt, open_prompts
from aurora_core.versions import RunState, VersionStore, write_run_state

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins


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
            plain = await plain_answer(endpoint, prompt, max_tokens=plan.max_tokens)
            seen.expected[prompt.text] = plain
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
