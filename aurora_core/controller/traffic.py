"""The run's own requests, and the comparison of every nth answer with one without speculation.

prompts --> replay driver --> engine        `concurrency` requests at a time
                 |
                 +-- every nth answer --> repeated without speculation, one at a time
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

import anyio
from anyio.abc import TaskGroup

from aurora_core.controller.swap_gaps import SwapGaps
from aurora_core.errors import BackendError
from aurora_core.records import NO_DRAFTER
from aurora_core.traffic.driver import ReplayDriver, ReplaySettings
from aurora_core.traffic.endpoint import Endpoint
from aurora_core.traffic.lossless import LosslessCheck, LosslessReport
from aurora_core.traffic.prompts import Prompt, open_prompts
from aurora_core.traffic.results import ReplayResult

if TYPE_CHECKING:
    from aurora_core.config import RunConfig, TrafficSection

_MAX_NOTES = 20
"""Failed requests that are told about one by one."""
_PAUSE_AFTER_FAILURE_S = 1.0


class OwnTraffic:
    """Sends prompts until a number, a time or a stop, and counts what became of them."""

    def __init__(
        self,
        section: TrafficSection,
        *,
        seed: int,
        keep_held_out: bool,
        note: Callable[[str], None],
        gaps: SwapGaps,
    ) -> None:
        """
        Args:
            section: what to send, and how.
            seed: of prompts, arrivals and sampling.
            keep_held_out: whether the held-out side of the prompts is left for a measurement.
            note: told in a sentence what a person should know.
            gaps: is given the pauses of every answer.

        Raises:
            ConfigError: the prompts cannot be read.
        """
        self.num_requests = self.num_failed = 0
        self.last_error = ""
        """Why the last request that failed did."""
        self.num_compared_by_version: Counter[int] = Counter()
        """Compared answers by the newest draft version behind them."""
        self._section, self._seed, self._note, self._gaps = section, seed, note, gaps
        self._driver: ReplayDriver | None = None
        self._source = open_prompts(
            section.prompts,
            domains=section.domains,
            order=section.order,
            seed=seed,
            split="train" if keep_held_out else None,
        )
        self._check: LosslessCheck | None = None
        self._comparable = True
        self._to_compare: dict[int, Prompt] = {}
        self._comparing = anyio.Semaphore(1)  # comparisons must not crowd out the traffic

    @classmethod
    def of(cls, config: RunConfig, *, note: Callable[[str], None], gaps: SwapGaps) -> Self | None:
        """Return the traffic that a configuration asks for, None if it asks for none."""
        if config.traffic is None:
            return None
        return cls(
            config.traffic,
            seed=config.seed,
            keep_held_out=config.final_bench is not None,
            note=note,
            gaps=gaps,
        )

    @property
    def num_sent(self) -> int:
        """Requests sent; a run that is interrupted does not wait for the last of them."""
        return self._driver.num_sent if self._driver else 0

    def count(self) -> int:
        """Return how many requests were answered or failed."""
        return self.num_requests

    @property
    def all_failed(self) -> bool:
        """Whether requests were sent and not one of them was answered."""
        return 0 < self.num_requests == self.num_failed

    @property
    def lossless(self) -> LosslessReport | None:
        """What the comparisons found; None when none was asked for."""
        return self._check.report if self._check else None

    async def run(self, url: str, *, requests: int | None, duration_s: float | None) -> None:
        """Send requests to the engine at `url`.

        Args:
            url: base URL.
            requests: return after so many; None sends without end.
            duration_s: send for so long; requests in flight then are finished.

        Raises:
            BackendError: the engine offers no model.
        """
        section = self._section
        settings = ReplaySettings(
            concurrency=section.concurrency,
            rate=section.rate,
            max_tokens=section.max_tokens,
            temperature=section.temperature,
            seed=self._seed,
        )
        async with Endpoint(url) as endpoint:
            if section.lossless_every and not section.temperature:
                self._check = LosslessCheck(endpoint, max_tokens=section.max_tokens)
            driver = self._driver = ReplayDriver(endpoint, self._prompts(requests), settings)
            # The timer ends with the last result, the comparisons end when they are done.
            async with (
                anyio.create_task_group() as comparisons,
                anyio.create_task_group() as timer,
            ):
                timer.start_soon(_stop_after, driver, duration_s)
                await self._take_results(driver, comparisons)
                timer.cancel_scope.cancel()

    async def _take_results(self, driver: ReplayDriver, comparisons: TaskGroup) -> None:
        async with contextlib.aclosing(driver.results()) as results:
            async for result in results:
                self.num_requests += 1
                self._gaps.answered(longest_gap_s=result.longest_gap_s, latency_s=result.latency_s)
                prompt = self._to_compare.pop(result.index, None)
                if not result.ok:
                    self.num_failed += 1
                    self.last_error = result.error or ""
                    if self.num_failed <= _MAX_NOTES:
                        self._note(f"request {result.index + 1} failed: {result.error}")
                    # An engine that is gone refuses at once: all prompts would be burnt before
                    # anybody notices.
                    await anyio.sleep(_PAUSE_AFTER_FAILURE_S)
                elif prompt is not None:
                    comparisons.start_soon(self._compare, prompt, result)

    def _prompts(self, requests: int | None) -> Iterator[Prompt]:
        """Yield the prompts, from the beginning again at the end of a file."""
        endless = itertools.chain.from_iterable(self._source.prompts() for _ in itertools.count())
        every = self._section.lossless_every if self._check else 0
        for index, prompt in enumerate(itertools.islice(endless, requests)):
            if every and index % every == 0:
                self._to_compare[index] = prompt
            yield prompt

    async def _compare(self, prompt: Prompt, result: ReplayResult) -> None:
        check, stats = self._check, result.aurora
        assert check is not None
        async with self._comparing:
            if not self._comparable:
                return
            try:
                difference = await check.check(
                    prompt,
                    result.token_ids or (),
                    index=result.index,
                    min_draft_version=stats.min_draft_version if stats else NO_DRAFTER,
                    max_draft_version=stats.max_draft_version if stats else NO_DRAFTER,
                )
            except BackendError as error:
                self._note(f"answers are not compared any more: {error}")
                self._comparable = False
                return
        self.num_compared_by_version[stats.max_draft_version if stats else NO_DRAFTER] += 1
        if difference is not None and not difference.is_near_tie:
            self._note(
                f"request {difference.index + 1} differs from the one without speculation at "
                f"output token {difference.position + 1}"
            )


async def _stop_after(driver: ReplayDriver, duration_s: float | None) -> None:
    if duration_s is not None:
        await anyio.sleep(duration_s)
        driver.stop()
