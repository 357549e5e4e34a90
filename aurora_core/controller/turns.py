"""Whose learner may train now, when several share a machine that is too small for all of them.

    learners    A B C ...        in a row; the first `concurrent` ones train
    after `turn_s`, or when one finds nothing to learn: to the end of the row, and the next trains

A learner that rests keeps its place in memory and its optimizer's state; it only takes no step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio

_TICK_S = 0.5
_LEAST_S = 2.0
"""A learner needs a moment to find out and say whether there is anything to learn."""


class TakesTurns(Protocol):
    """A learner, as far as turns go."""

    @property
    def has_work(self) -> bool:
        """Whether it runs and does not wait for traces, as far as it has said."""

    async def give_turn(self, granted: bool) -> None:
        """Let it train, or rest."""


class Turns:
    """Lets some of several learners train at a time, each of them in its turn."""

    def __init__(
        self,
        learners: Sequence[TakesTurns],
        *,
        concurrent: int,
        turn_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            learners: of all lineages that train.
            concurrent: how many of them train at the same time.
            turn_s: seconds of a turn.
            clock: seconds.
        """
        self._row = list(learners)
        self._concurrent, self._turn_s, self._clock = concurrent, turn_s, clock
        self._since: dict[int, float] = {}

    async def begin(self) -> None:
        """Give the first turns; call it before the learners start."""
        await self._grant()

    async def run(self) -> None:
        """Pass the turns on until cancelled; returns at once where everybody may train."""
        while len(self._row) > self._concurrent:
            await anyio.sleep(_TICK_S)
            await self.pass_on()

    async def pass_on(self) -> None:
        """End the turns that are over, and give them to those who rested longest."""
        now = self._clock()
        for learner in self._row[: self._concurrent]:
            lasted = now - self._since[id(learner)]
            if lasted >= self._turn_s or (lasted >= _LEAST_S and not learner.has_work):
                self._row.remove(learner)
                self._row.append(learner)
        await self._grant()

    async def _grant(self) -> None:
        training, resting = self._row[: self._concurrent], self._row[self._concurrent :]
        for learner in resting:  # first, so that there are never too many
            self._since.pop(id(learner), None)
            await learner.give_turn(False)
        for learner in training:
            self._since.setdefault(id(learner), self._clock())
            await learner.give_turn(True)
