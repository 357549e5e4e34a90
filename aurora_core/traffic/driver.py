"""Sends prompts to an endpoint and yields the results as they come.

    prompts --> at most `concurrency` requests in flight --> results, in the order they end
                        ^
                        | arrivals: at once, or Poisson with `rate` per second

Plain asyncio tasks instead of a task group: a generator may not yield from inside one. They are
cancelled when the generator is closed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aurora_core.traffic.completion import RequestFailed
from aurora_core.traffic.endpoint import Drafter, Endpoint, RequestSettings
from aurora_core.traffic.prompts.prompt import Prompt
from aurora_core.traffic.results import ReplayResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """How prompts are sent."""

    concurrency: int = 4
    """Requests in flight at once, at most."""
    rate: float | None = None
    """Mean requests per second, arriving at random; None sends whenever there is room."""
    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    """Seeds the arrivals and, when sampling, every request."""
    drafter: Drafter | None = None
    """See `RequestSettings`."""
    record: bool | None = None
    """See `RequestSettings`."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.rate is not None and self.rate <= 0:
            raise ValueError(f"rate must be above 0, not {self.rate}")

    def for_request(self, index: int, prompt: Prompt) -> RequestSettings:
        """Return the settings of one request; its domain becomes its route."""
        return RequestSettings(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed + index if self.temperature > 0 else None,
            drafter=self.drafter,
            record=self.record,
            route=prompt.domain,
        )


class ReplayDriver:
    """One replay. Embed it by iterating `results()`; end it early with `stop()`.

    Close the generator (`contextlib.aclosing`) to abandon requests in flight instead.
    """

    def __init__(
        self, endpoint: Endpoint, prompts: Iterable[Prompt], settings: ReplaySettings
    ) -> None:
        """Prepare a replay.

        Args:
            endpoint: entered already.
            prompts: sent in order; may be endless.
            settings: how.
        """
        self.endpoint, self.settings = endpoint, settings
        self._prompts: Iterator[tuple[int, Prompt]] = enumerate(prompts)
        self._stopping = asyncio.Event()
        self._random = random.Random(f"{settings.seed}/arrivals")
        self.num_sent = 0
        self.started: float | None = None
        """Value of `time.perf_counter` when the first request was sent."""
        self.ended: float | None = None
        """The same for the end of the latest request."""

    @property
    def wall_s(self) -> float | None:
        """Seconds from the first request sent to the latest one ended."""
        if self.started is None or self.ended is None:
            return None
        return self.ended - self.started

    def stop(self) -> None:
        """Send nothing more; requests in flight end as they would. Callable twice."""
        self._stopping.set()

    async def results(self) -> AsyncGenerator[ReplayResult, None]:
        """Send the prompts and yield one result for each, failed ones included."""
        stop_signal = asyncio.create_task(self._stopping.wait())
        in_flight: set[asyncio.Task[ReplayResult]] = set()
        next_arrival = time.perf_counter()
        exhausted = False
        try:
            while True:
                now = time.perf_counter()
                while (
                    not (exhausted or self._stopping.is_set())
                    and len(in_flight) < self.settings.concurrency
                    and now >= next_arrival
                ):
                    following = next(self._prompts, None)
                    if following is None:
                        exhausted = True
                        break
                    in_flight.add(asyncio.create_task(self._send(*following)))
                    next_arrival = self._after(next_arrival)
                ending = exhausted or self._stopping.is_set()
                if ending and not in_flight:
                    return
                has_room = not ending and len(in_flight) < self.settings.concurrency
                # Once stopping, the signal would end every wait at once.
                signals: set[asyncio.Task[Any]] = (
                    set() if self._stopping.is_set() else {stop_signal}
                )
                done, _ = await asyncio.wait(
                    signals | in_flight,
                    timeout=max(0.0, next_arrival - now) if has_room else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in [one for one in in_flight if one in done]:
                    in_flight.discard(task)
                    yield task.result()
        finally:
            for unfinished in (stop_signal, *in_flight):
                unfinished.cancel()
            await asyncio.gather(stop_signal, *in_flight, return_exceptions=True)

    def _after(self, arrival: float) -> float:
        """Return the arrival that follows; a schedule kept whether or not there was room."""
        if self.settings.rate is None:
            return arrival
        return arrival + self._random.expovariate(self.settings.rate)

    async def _send(self, index: int, prompt: Prompt) -> ReplayResult:
        if self.started is None:
            self.started = time.perf_counter()
        self.num_sent += 1
        try:
            completion = await self.endpoint.complete(
                prompt, self.settings.for_request(index, prompt)
            )
        except RequestFailed as failure:
            return ReplayResult.failed(index, prompt.domain, failure)
        finally:
            self.ended = time.perf_counter()
        return ReplayResult.answered(index, prompt.domain, completion)
