"""Learners that share a machine too small for all of them."""

from __future__ import annotations

import pytest

from aurora_core.controller.turns import Turns


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Learner:
    def __init__(self):
        self.has_work, self.trains = True, True

    async def give_turn(self, granted):
        self.trains = granted


class Row:
    """Some learners, a clock, and who trains after a while."""

    def __init__(self, count, *, concurrent=1):
        self.clock, self.learners = Clock(), [Learner() for _ in range(count)]
        self.turns = Turns(self.learners, concurrent=concurrent, turn_s=20.0, clock=self.clock)

    def training(self):
        return [index for index, one in enumerate(self.learners) if one.trains]

    async def after(self, seconds):
        self.clock.now += seconds
        await self.turns.pass_on()
        return self.training()


async def test_each_learner_trains_in_its_turn():
    row = Row(3)
    await row.turns.begin()
    assert row.training() == [0]
    assert await row.after(10.0) == [0]
    assert await row.after(10.0) == [1]
    assert await row.after(20.0) == [2]
    assert await row.after(20.0) == [0]


async def test_as_many_train_at_once_as_may():
    row = Row(3, concurrent=2)
    await row.turns.begin()
    assert row.training() == [0, 1]
    assert len(await row.after(20.0)) == 2
    assert 2 in row.training()


async def test_a_learner_without_traces_makes_way_early_but_is_asked_first():
    row = Row(2)
    await row.turns.begin()
    row.learners[0].has_work = False
    assert await row.after(1.0) == [0]  # it may not have looked yet
    assert await row.after(1.5) == [1]
    assert await row.after(20.0) == [0]


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_where_there_is_room_for_all_nobody_rests(count):
    row = Row(count, concurrent=2)
    await row.turns.begin()
    await row.turns.run()
    assert len(row.training()) == count
