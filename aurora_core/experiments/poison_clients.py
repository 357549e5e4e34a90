"""Clients that ask one prompt after the other, for as long as a server is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence

from aurora_core.experiments.plain_answers import plain_answer
from aurora_core.experiments.poison_report import Answer
from aurora_core.experiments.server_gone import PATIENCE, must_answer
from aurora_core.traffic.completion import Completion, RequestFailed
from aurora_core.traffic.endpoint import Endpoint, RequestSettings
from aurora_core.traffic.prompts import Prompt

_POLL_S = 0.1
_PAUSE_S = 0.5
"""After a request that failed: a server that is gone refuses at once."""


class Clients:
    """Asks, and remembers every answer.

    Args:
        prompts: asked in turn, again and again.
        expected: output tokens of each prompt without speculation; those that are not known are
            asked for first.
        max_tokens: of an answer.
        concurrency: requests in flight at once.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        expected: dict[str, tuple[int, ...]],
        *,
        max_tokens: int,
        concurrency: int,
    ) -> None:
        self.answers: list[Answer] = []
        """In the order in which they came."""
        self.began = 0.0
        """When the first prompt was sent, in Unix seconds."""
        self._prompts, self._expected = prompts, expected
        self._max_tokens, self._concurrency = max_tokens, concurrency
        self._turns = itertools.cycle(prompts)

    @contextlib.asynccontextmanager
    async def asking(self, endpoint: Endpoint) -> AsyncIterator[None]:
        """Keep asking while the block lasts; answers in flight are awaited at its end.

        Raises:
            BackendError: a prompt is not answered without speculation.
        """
        for prompt in self._prompts:
            if prompt.text not in self._expected:
                self._expected[prompt.text] = await plain_answer(
                    endpoint, prompt, max_tokens=self._max_tokens
                )
        ending = asyncio.Event()
        self.began = time.time()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._concurrency):
                tasks.create_task(self._ask(endpoint, ending))
            try:
                yield
            finally:
                ending.set()

    async def until(self, condition: Callable[[int], bool], *, most: int) -> bool:
        """Return once a condition holds and the latest request was answered, and whether so.

        Args:
            condition: given the number of answers since this was called.
            most: answers after which it is given up.

        Raises:
            ServerGone: it does not answer any more.
        """
        first = len(self.answers)
        # What a server leaves that is going away must not pass for what has settled.
        while not condition(len(self.answers) - first) or self._failed_last():
            must_answer([one.error for one in self.answers[-PATIENCE:]])
            if len(self.answers) - first >= most:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _failed_last(self) -> bool:
        return bool(self.answers) and bool(self.answers[-1].error)

    async def _ask(self, endpoint: Endpoint, ending: asyncio.Event) -> None:
        # Nothing is learned from these requests, so nothing need be recorded.
        settings = RequestSettings(max_tokens=self._max_tokens, record=False)
        while not ending.is_set():
            prompt = next(self._turns)
            try:
                completion = await endpoint.complete(prompt, settings)
            except RequestFailed as failure:
                self.answers.append(Answer(finished=time.time(), error=str(failure)))
                await asyncio.sleep(_PAUSE_S)
            else:
                self.answers.append(self._answer(prompt, completion))

    def _answer(self, prompt: Prompt, completion: Completion) -> Answer:
        stats = completion.speculation
        return Answer(
            finished=time.time(),
            version=None if stats is None else stats.max_draft_version,
            same=completion.token_ids == self._expected[prompt.text],
        )
