"""From HTTP requests to the engine's thread and back.

    event loop: Generation.start --> Engine.submit          (takes a lock, returns at once)
    engine thread: on_output --> OutputRelay.post           (appends; wakes the loop once per batch)
    event loop: OutputRelay._drain --> Choice.take --> Generation's queue --> the response

Text is made on the event loop. The engine's thread never waits for a client: what a slow one has
not read stays in its own generation's queue, at most `max_tokens` long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from aurora_backend_torch.api_errors import ApiError, crash, stopping
from aurora_backend_torch.detokenizer import Detokenizer, StopStrings
from aurora_backend_torch.generation import QueueFull
from aurora_backend_torch.routing import Routing
from aurora_core.errors import AuroraError

if TYPE_CHECKING:
    from aurora_backend_torch.config import TorchBackendOptions
    from aurora_backend_torch.engine import Engine
    from aurora_backend_torch.generation import GenerationRequest, StepOutput, TokenLogprob
    from aurora_backend_torch.metrics import ServerMetrics
    from aurora_backend_torch.tokenizer import TargetTokenizer
    from aurora_core.records import RequestStats

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Delta:
    """What one verification step added to one choice, as the client may see it."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    finish_reason: str | None = None
    stats: RequestStats | None = None


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


@dataclass(slots=True, kw_only=True)
class ChoicePlan:
    """One sequence to generate and how to show it."""

    request: GenerationRequest
    stops: list[str]
    skip_special_tokens: bool


class OutputRelay:
    """Carries outputs from the engine's thread to the event loop, one wake-up for many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outputs: deque[tuple[Choice, StepOutput]] = deque()
        self._is_scheduled = False

    def post(self, choice: Choice, output: StepOutput) -> None:
        """Hand over one output. Runs on the engine's thread."""
        self._outputs.append((choice, output))
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: the process is stopping
                self._outputs.clear()

    def _drain(self) -> None:
        self._is_scheduled = False  # before reading: a later post schedules again
        while self._outputs:
            choice, output = self._outputs.popleft()
            try:
                choice.take(output)
            except Exception:  # one request's failure must not stop the others' text
                logger.exception("an output of %s cannot be shown", choice.request.request_id)
                choice.fail()


class Choice:
    """One sequence of a generation. Used from the event loop only."""

    def __init__(self, index: int, plan: ChoicePlan, generation: Generation) -> None:
        self.index = index
        self.request = plan.request
        self.num_tokens = 0
        self.is_finished = False
        self._generation = generation
        self._detokenizer = Detokenizer(
            generation.service.tokenizer.fast,
            plan.request.prompt_token_ids,
            skip_special_tokens=plan.skip_special_tokens,
        )
        self._stops = StopStrings(plan.stops)
        self._stopped_with: Delta | None = None
        self._last_step = 0.0

    def take(self, output: StepOutput) -> None:
        """Turn an output into a delta for the response."""
        service = self._generation.service
        if output.stats is not None:
            service.metrics.finished(output.stats)
        if self.is_finished:
            return
        delta = self._stopped_with or self._delta(output)
        if output.finish_reason is None:
            if self._stopped_with is None:
                self._generation.put(delta)
            return
        self.is_finished = True
        delta.stats = output.stats
        if self._stopped_with is None:
            delta.text += self._finish_text()
            delta.finish_reason = output.finish_reason
        self._generation.put(delta)

    def fail(self) -> None:
        """End the response because of a fault of ours."""
        self._generation.put(crash())

    def _delta(self, output: StepOutput) -> Delta:
        now = time.perf_counter()
        if self._last_step:
            self._generation.service.metrics.step(now - self._last_step, len(output.token_ids))
        self._last_step = now
        texts: list[str] = []
        for count, token_id in enumerate(output.token_ids, start=1):
            text, has_stopped = self._stops.feed(self._detokenizer.step(token_id))
            texts.append(text)
            if has_stopped:
                return self._stop(output, texts, count)
        self.num_tokens += len(output.token_ids)
        return Delta(
            index=self.index,
            text="".join(texts),
            token_ids=output.token_ids,
            logprobs=output.logprobs or [],
        )

    def _stop(self, output: StepOutput, texts: list[str], count: int) -> Delta:
        """End the sequence at the token that completed a stop string.

        The delta is sent when the engine confirms with the request's statistics.
        """
        self.num_tokens += count
        self._stopped_with = Delta(
            index=self.index,
            text="".join(texts),
            token_ids=output.token_ids[:count],
            logprobs=(output.logprobs or [])[:count],
            finish_reason="stop",
        )
        self._generation.service.engine.end(
            self.request.request_id, reason="stop", num_output_tokens=self.num_tokens
        )
        return self._stopped_with

    def _finish_text(self) -> str:
        text, has_stopped = self._stops.feed(self._detokenizer.finish())
        return text if has_stopped else text + self._stops.finish()


@dataclass(slots=True, eq=False)
class Generation:
    """All sequences of one HTTP request."""

    service: GenerationService
    choices: list[Choice] = field(default_factory=list)
    _deltas: asyncio.Queue[Delta | Exception] = field(default_factory=asyncio.Queue)
    _timer: asyncio.TimerHandle | None = None

    def start(self, plans: Sequence[ChoicePlan]) -> None:
        """Submit every sequence, or none.

        Raises:
            ApiError: 429 when the queue is full, 400 when the engine refuses the request.
        """
        options, engine = self.service.options, self.service.engine
        self.choices = [Choice(index, plan, self) for index, plan in enumerate(plans)]
        try:
            for choice in self.choices:
                engine.submit(choice.request, partial(self.service.relay.post, choice))
        except QueueFull as error:
            self.close()
            retry_after_s = max(1, round(error.retry_after_s))
            raise ApiError(
                429,
                f"the server is busy; try again in {retry_after_s} s",
                code="queue_full",
                headers={"Retry-After": str(retry_after_s)},
            ) from error
        except AuroraError as error:
            self.close()
            raise ApiError(400, str(error)) from error
        except BaseException:
            self.close()
            raise
        self.service.generations.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(options.request_timeout_s, self._expire)

    def put(self, item: Delta | Exception) -> None:
        """Add to what the response shows next; an exception ends it."""
        self._deltas.put_nowait(item)

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yield what the sequences add until all are finished.

        Raises:
            ApiError: 504 after the request timeout, 503 when the server stops, 500 when the
                engine gave the request up.
            ClientGone: the client closed the connection.
        """
        num_open = len(self.choices)
        while num_open:
            item = await self._deltas.get()
            if isinstance(item, Exception):
                raise item
            if item.finish_reason == "abort":
                raise stopping() if self.service.is_stopping else crash()
            num_open -= item.finish_reason is not None
            yield item

    def close(self) -> None:
        """Free what unfinished sequences hold in the engine. Callable twice."""
        if self._timer is not None:
            self._timer.cancel()
        self.service.generations.discard(self)
        for choice in self.choices:
            if not choice.is_finished:
                choice.is_finished = True
                self.service.engine.end(choice.request.request_id, reason="abort")

    def _expire(self) -> None:
        timeout_s = self.service.options.request_timeout_s
        self.put(ApiError(504, f"the request was not complete within {timeout_s:g} s"))


class GenerationService:
    """What the routes share: the engine, the tokenizer, the options and what is in flight."""

    def __init__(
        self,
        *,
        engine: Engine,
        tokenizer: TargetTokenizer,
        options: TorchBackendOptions,
        metrics: ServerMetrics,
        relay: OutputRelay,
    ) -> None:
        self.engine = engine
        self.routing = {
            name: Routing(engine, name)
            for name in ("", *(rule.name for rule in engine.lineage_rules))
        }
        """By lineage; the default one's name is empty."""
        self.tokenizer = tokenizer
        self.options = options
        self.metrics = metrics
        self.relay = relay
        self.generations: set[Generation] = set()
        self.is_stopping = False

    @property
    def model(self) -> str:
        """Name of the model in the API."""
        return self.options.served_name or self.engine.target.name

    def stop(self) -> None:
        """Refuse new requests and end those in flight."""
        self.is_stopping = True
        for generation in list(self.generations):
            generation.put(stopping())
