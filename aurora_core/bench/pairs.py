"""Pairs of runs: the same prompts at once, with and without speculation, in alternating order.

A run is one batch: as many requests as the batch size, sent together. What drifts over minutes (a
machine that warms up, a neighbour that wakes up) meets both runs of a pair alike.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from aurora_core.errors import BackendError
from aurora_core.records import NO_DRAFTER
from aurora_core.traffic.completion import Completion, RequestFailed
from aurora_core.traffic.endpoint import Drafter, Endpoint, RequestSettings
from aurora_core.traffic.lossless import LosslessCheck, require_plain, require_token_ids
from aurora_core.traffic.prompts.prompt import Prompt

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One batch of requests in one configuration."""

    completions: tuple[Completion, ...]
    wall_s: float
    """From the first request sent to the last one answered."""

    @property
    def otps(self) -> float | None:
        """Mean over the requests of output tokens per second; None if none had two tokens."""
        speeds = [one.otps for one in self.completions if one.otps is not None]
        return statistics.fmean(speeds) if speeds else None

    @property
    def throughput(self) -> float:
        """Output tokens of all requests per second of `wall_s`."""
        return sum(one.num_output_tokens for one in self.completions) / self.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs over the same prompts."""

    none: Run
    speculative: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPair:
    """A pair that gives no figures, because one of its requests failed."""

    reason: str


def num_pairs(batch_size: int, num_prompts: int, repeats: int) -> int:
    """Return how many pairs a batch size gets: every prompt once, and at least `repeats` pairs."""
    return max(repeats, math.ceil(num_prompts / batch_size))


async def run_pairs(
    endpoint: Endpoint,
    prompts: Sequence[Prompt],
    *,
    batch_size: int,
    repeats: int,
    max_tokens: int,
    drafter: Drafter,
    check: LosslessCheck,
    lineage: str = "",
) -> AsyncIterator[Pair | FailedPair]:
    """Warm up, then yield `num_pairs(...)` pairs; also compares their outputs with `check`.

    Prompts are taken in turn, `batch_size` at a time, from the beginning again when they run out.

    Raises:
        BackendError: the server does not serve without speculation, or does not tell tokens.
    """
    none = RequestSettings(max_tokens=max_tokens, drafter="none", record=False, lineage=lineage)
    speculative = replace(none, drafter=drafter)
    await _warm_up(endpoint, prompts[:batch_size], (none, speculative))
    for number in range(num_pairs(batch_size, len(prompts), repeats)):
        first = number * batch_size
        batch = [prompts[(first + offset) % len(prompts)] for offset in range(batch_size)]
        order = (none, speculative) if number % 2 == 0 else (speculative, none)
        try:
            runs = {settings.drafter: await _run(endpoint, batch, settings) for settings in order}
            pair = Pair(none=runs[none.drafter], speculative=runs[speculative.drafter])
            await _compare(check, batch, pair, endpoint.url)
        except RequestFailed as failure:
            yield FailedPair(reason=str(failure))
            continue
        yield pair


async def _warm_up(
    endpoint: Endpoint, prompts: Sequence[Prompt], configurations: Sequence[RequestSettings]
) -> None:
    """Run every configuration once, unmeasured: first calls compile and allocate."""
    for settings in configurations:
        short = replace(settings, max_tokens=min(settings.max_tokens, _WARM_UP_TOKENS))
        try:
            await _run(endpoint, prompts, short)
        except RequestFailed as failure:
            raise BackendError(
                f"the server at {endpoint.url} does not answer {len(prompts)} requests with "
                f"`drafter: {settings.drafter}`: {failure}"
            ) from failure


async def _run(endpoint: Endpoint, batch: Sequence[Prompt], settings: RequestSettings) -> Run:
    sent = time.perf_counter()
    # All of a batch, failed ones included, before the next run: nothing may be left decoding.
    outcomes = await asyncio.gather(
        *(endpoint.complete(prompt, settings) for prompt in batch), return_exceptions=True
    )
    wall_s = time.perf_counter() - sent
    completions = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        completions.append(outcome)
        if settings.drafter == "none":
            require_plain(outcome, endpoint.url)
    return Run(completions=tuple(completions), wall_s=wall_s)


async def _compare(check: LosslessCheck, batch: Sequence[Prompt], pair: Pair, url: str) -> None:
    rows = zip(batch, pair.none.completions, pair.speculative.completions, strict=True)
    for index, (prompt, without, speculative) in enumerate(rows):
        stats = speculative.speculation
        await check.compare(
            prompt,
            require_token_ids(speculative, url),
            without,
            index=index,
            min_draft_version=stats.min_draft_version if stats else NO_DRAFTER,
            max_draft_version=stats.max_draft_version if stats else NO_DRAFTER,
        )
