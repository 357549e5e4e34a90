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


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One drafter that is measured, and the engine that serves it."""

    endpoint: Endpoint
    """Entered."""
    drafter: Drafter
    """`live`, or a resident version."""
    check: LosslessCheck
    """Compares its outputs."""
    lineage: str = ""
    """Whose drafter; empty where the engine has one lineage."""


async def run_rounds(
    contenders: Sequence[Contender],
    prompts: Sequence[Prompt],
    *,
    batch_size: int,
    repeats: int,
    max_tokens: int,
) -> AsyncIterator[tuple[Pair | FailedPair, ...]]:
    """Warm up, then yield `num_pairs(...)` rounds: one pair for each contender, in their order.

    In a round the same prompts run once without speculation and once with each contender; all its
    pairs share the run without. Contenders take turns in serving that one, and all runs in being
    the first. Prompts are taken in turn, `batch_size` at a time, from the beginning again when they
    run out.

    Raises:
        BackendError: a server does not serve without speculation, or does not tell tokens.
    """
    plain = [
        RequestSettings(
            max_tokens=max_tokens, drafter="none", record=False, lineage=contender.lineage
        )
        for contender in contenders
    ]
    speculative = [
        replace(none, drafter=contender.drafter)
        for none, contender in zip(plain, contenders, strict=True)
    ]
    for contender, *settings in zip(contenders, plain, speculative, strict=True):
        await _warm_up(contender.endpoint, prompts[:batch_size], settings)
    for number in range(num_pairs(batch_size, len(prompts), repeats)):
        first = number * batch_size
        batch = [prompts[(first + offset) % len(prompts)] for offset in range(batch_size)]
        plain_on = number % len(contenders)
        runs = [(contenders[plain_on].endpoint, plain[plain_on])]
        runs += [
            (contender.endpoint, settings)
            for contender, settings in zip(contenders, speculative, strict=True)
        ]
        outcomes: dict[int, Run | RequestFailed] = {}
        for turn in range(len(runs)):
            index = (number + turn) % len(runs)
            try:
                outcomes[index] = await _run(runs[index][0], batch, runs[index][1])
            except RequestFailed as failure:
                outcomes[index] = failure
        yield tuple(
            [
                await _paired(contender, batch, outcomes[0], outcomes[index])
                for index, contender in enumerate(contenders, start=1)
            ]
        )


async def _paired(
    contender: Contender,
    batch: Sequence[Prompt],
    none: Run | RequestFailed,
    speculative: Run | RequestFailed,
) -> Pair | FailedPair:
    """Return two runs as a pair, their outputs compared."""
    try:
        for outcome in (none, speculative):
            if isinstance(outcome, RequestFailed):
                raise outcome
        assert isinstance(none, Run) and isinstance(speculative, Run)
        pair = Pair(none=none, speculative=speculative)
        await _compare(contender.check, batch, pair, contender.endpoint.url)
    except RequestFailed as failure:
        return FailedPair(reason=str(failure))
    return pair


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
