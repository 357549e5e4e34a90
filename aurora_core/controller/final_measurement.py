"""The speed-up at the end of a run: the run's own engine and last drafter, held-out prompts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from aurora_core.bench import SpeedupReport, measure_speedup
from aurora_core.bench.measure import OnPair
from aurora_core.errors import BackendError, ConfigError
from aurora_core.lineages import DEFAULT_LINEAGE
from aurora_core.traffic.prompts import Prompt, open_prompts

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.console import RunConsole


def held_out_prompts(config: RunConfig) -> list[Prompt]:
    """Return the prompts to measure with: of the same traffic, on the side that is never sent.

    Raises:
        ConfigError: the prompts cannot be read, or are too few for a batch size.
    """
    section = config.final_bench
    if section is None:
        return []
    traffic = config.traffic
    source = open_prompts(
        traffic.prompts if traffic else None,
        domains=traffic.domains if traffic else None,
        seed=config.seed,
        split="holdout",
    )
    prompts = list(itertools.islice(source.prompts(), section.num_prompts))
    if max(section.batch_sizes) > len(prompts):
        raise ConfigError(
            f"final_bench.batch_sizes asks for {max(section.batch_sizes)} requests at once, but "
            f"there are {len(prompts)} held-out prompts; raise final_bench.num_prompts"
        )
    return prompts


class FinalMeasurement:
    """Measures with and without speculation, interleaved, once the learner has stopped."""

    def __init__(self, config: RunConfig, console: RunConsole) -> None:
        """Read the prompts.

        Raises:
            ConfigError: see `held_out_prompts`.
        """
        self.reports: tuple[SpeedupReport, ...] = ()
        """One per batch size, as far as it went; of the default lineage, if there are several."""
        self.by_lineage: dict[str, tuple[SpeedupReport, ...]] = {}
        """The same for every further lineage."""
        self._config, self._console = config, console
        self._prompts = held_out_prompts(config)

    async def run(self, url: str, lineages: Sequence[str] = ()) -> None:
        """Measure on the engine at `url`; one that does not answer costs the figures alone.

        Args:
            url: of the engine.
            lineages: names of all but the default one: each is measured on the same prompts.
        """
        if self._config.final_bench is None:
            return
        try:
            await self._measure(url, DEFAULT_LINEAGE if lineages else "", self._keep)
            for name in lineages:
                await self._measure(url, name, partial(self._keep_of, name))
        except BackendError as error:
            self._console.note(f"the speed-up was not measured: {error}")

    async def _measure(self, url: str, lineage: str, keep: Callable[[SpeedupReport], None]) -> None:
        section = self._config.final_bench
        assert section is not None
        for batch_size in section.batch_sizes:
            keep(
                await measure_speedup(
                    url,
                    self._prompts,
                    batch_size=batch_size,
                    max_tokens=section.max_tokens,
                    lineage=lineage,
                    on_pair=self._count_pairs(lineage),
                )
            )

    def _keep(self, report: SpeedupReport) -> None:
        self.reports = (*self.reports, report)

    def _keep_of(self, lineage: str, report: SpeedupReport) -> None:
        self.by_lineage[lineage] = (*self.by_lineage.get(lineage, ()), report)

    def _count_pairs(self, lineage: str) -> OnPair:
        numbers = itertools.count(1)
        whose = f" of lineage {lineage}" if lineage else ""

        def count(batch_size: int, total: int) -> None:
            self._console.progress(
                f"measuring the speed-up{whose} at batch size {batch_size}: "
                f"{next(numbers)} of {total}"
            )

        return count
