"""A controller that is killed at any point of a swap: the next one finds one consistent version.

The engine ends with its controller, so what serves after a restart is what `state.json` names.
"""

from __future__ import annotations

import contextlib

import pytest

from aurora_core import versions
from aurora_core.controller.bookkeeping import Bookkeeping
from aurora_core.controller.build import read_lineage
from aurora_core.controller.evidence import LiveTraffic
from aurora_core.controller.record_file import RecordFile
from aurora_core.controller.run_directory import RunDirectory
from aurora_core.controller.swapping import Swapping
from aurora_core.controller.trials import Trials
from aurora_core.interfaces import Options, SwapPolicy
from aurora_core.records import NO_DRAFTER, Verdict
from aurora_core.testing.fake_backend import FakeBackend, FakeBackendOptions
from aurora_core.versions import read_run_state


class Killed(BaseException):
    """The process is gone: nobody may handle it."""


class Says(SwapPolicy):
    """Decides what the test wants."""

    def __init__(self, action):
        super().__init__(Options())
        self.action = action

    def decide(self, evidence):
        if evidence.live is not None and evidence.candidate.version == evidence.live.version:
            return Verdict(action="hold", reason="it is live")
        return Verdict(action=self.action, reason="as the test wants", share=0.2)


class AnsweringBackend(FakeBackend):
    """Swaps without having been started."""

    def _check_alive(self):
        pass


class Decides(Says):
    """Decides the same about what is live."""

    def decide(self, evidence):
        return Verdict(action=self.action, reason="as the test wants")


class Registry:
    """MLflow's aliases."""

    def __init__(self):
        self.champion = None

    def set_live(self, live, previous):
        self.champion = live and live.version

    def retire(self, draft):
        pass


class Controller:
    """The judging side of a run on a directory."""

    def __init__(self, directory, action="promote", *, backend=None):
        self.directory, self.registry = directory, Registry()
        lineage = read_lineage(directory)
        self.backend = backend or AnsweringBackend(FakeBackendOptions())
        if backend is None:
            self.backend._live = lineage.live  # as `ServePlan.initial_version` says
        self.bookkeeping = Bookkeeping(directory, self.registry, note=lambda text: None)
        self.swapping = Swapping(
            backend=self.backend,
            policy=Says(action),
            traffic=LiveTraffic(started=0.0),
            live=lineage.live,
            previous=lineage.previous,
            verdicts=RecordFile(directory.verdicts, lambda text: None),
            find=directory.store.read,
            note=lambda text: None,
            notify=lambda hook, **arguments: hook == "aurora_draft_swapped" and self.notify(),
            on_change=self._on_change,
            stored=directory.store.numbers,
            pinned=lineage.pinned,
            switched_off=lineage.switched_off,
        )
        self.lineage = lineage

    def notify(self):
        """Tell the observers of a swap."""

    async def _on_change(self):
        swapping = self.swapping
        await self.bookkeeping.remember(
            swapping.live,
            swapping.previous,
            swapping.challenger,
            on_trial=swapping.trials.draft,
            pinned=swapping.pinned,
            switched_off=swapping.is_switched_off,
        )

    async def agrees(self):
        """Whether engine, state file, registry and this process name the same live version."""
        await self._on_change()
        await self.swapping.reconcile(await self.backend.status())
        live = self.swapping.live and self.swapping.live.version
        served = self.backend.live_version
        state = read_run_state(self.directory.state)
        return (
            live
            == (None if served == NO_DRAFTER else served)
            == state.champion
            == self.registry.champion
        ), live


@pytest.fixture
def directory(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    for version in (1, 2):
        content = f"weights of {version}".encode()
        directory.store.stage(
            version,
            lambda path, content=content: (path / "model.safetensors").write_bytes(content),
            parent=None,
            speculator="fake",
            target_fingerprint="f",
            global_step=version,
            num_tokens_trained=1,
        )
    return directory


def kill(*_, **__):
    raise Killed


async def kill_soon(*_, **__):
    raise Killed


def before_the_engine_swaps(monkeypatch):
    monkeypatch.setattr(AnsweringBackend, "swap", kill_soon)


def after_the_engine_swapped(monkeypatch):
    swap = AnsweringBackend.swap

    async def swap_and_die(self, version):
        await swap(self, version)
        raise Killed

    monkeypatch.setattr(AnsweringBackend, "swap", swap_and_die)


def before_the_verdict_is_written(monkeypatch):
    monkeypatch.setattr(RecordFile, "append", kill)


def before_the_swap_is_written_down(monkeypatch):
    append = RecordFile.append

    def append_verdicts(self, *records):
        if any(record["kind"] == "swap" for record in records):
            raise Killed
        append(self, *records)

    monkeypatch.setattr(RecordFile, "append", append_verdicts)


def before_the_trial_ends(monkeypatch):
    monkeypatch.setattr(Trials, "end", kill_soon)


def before_anybody_is_told(monkeypatch):
    monkeypatch.setattr(Controller, "notify", kill)


def after_the_state_is_written(monkeypatch):
    remember = RunDirectory.remember

    def remember_and_die(self, state):
        remember(self, state)
        raise Killed

    monkeypatch.setattr(RunDirectory, "remember", remember_and_die)


def before_the_state_is_written(monkeypatch):
    monkeypatch.setattr(RunDirectory, "remember", kill)


def in_the_middle_of_the_state_file(monkeypatch):
    monkeypatch.setattr(versions, "_force_to_disk", kill)


def before_the_aliases_move(monkeypatch):
    monkeypatch.setattr(Registry, "set_live", kill)


def while_old_versions_are_deleted(monkeypatch):
    monkeypatch.setattr(versions.VersionStore, "prune", kill)


MOMENTS = [
    before_the_verdict_is_written,
    before_the_engine_swaps,
    after_the_engine_swapped,
    before_the_trial_ends,
    before_the_swap_is_written_down,
    before_the_aliases_move,
    before_the_state_is_written,
    in_the_middle_of_the_state_file,
    while_old_versions_are_deleted,
    after_the_state_is_written,
    before_anybody_is_told,
]


async def serving_two(directory):
    """Return a controller with version 2 live and version 1 before it."""
    first = Controller(directory)
    for version in (1, 2):
        first.swapping.publish(directory.store.read(version))
        await first.swapping.review()
    assert await first.agrees() == (True, 2)
    return first


@pytest.mark.parametrize("moment", MOMENTS)
async def test_restart_finds_one_version_that_everybody_agrees_on(directory, monkeypatch, moment):
    first = Controller(directory)
    first.swapping.publish(directory.store.read(1))
    await first.swapping.review()
    assert await first.agrees() == (True, 1)
    first.swapping.publish(directory.store.read(2))
    await first._on_change()
    with monkeypatch.context() as patch:
        moment(patch)
        with pytest.raises(Killed):
            await first.swapping.review()
    again = Controller(directory, "hold")
    consistent, live = await again.agrees()
    assert consistent and live in (1, 2)
    assert directory.store.verify(live).version == live
    # What waited is judged once more, unless it is live already.
    if live == 1:
        assert again.lineage.challenger.version == 2


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("action", "allowed"), [("roll_back", 1), ("disable_speculation", None)])
async def test_the_same_where_a_version_is_taken_back(
    directory, monkeypatch, moment, action, allowed
):
    first = await serving_two(directory)
    first.swapping._policy = Decides(action)
    with monkeypatch.context() as patch:
        moment(patch)
        with pytest.raises(Killed):
            await first.swapping.review()
    again = Controller(directory, "hold")
    consistent, live = await again.agrees()
    assert consistent and live in (2, allowed)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_same_where_a_person_chooses(directory, monkeypatch, moment):
    first = await serving_two(directory)
    with monkeypatch.context() as patch:
        moment(patch)
        if moment is before_the_swap_is_written_down:
            before_the_verdict_is_written(patch)  # a person's choice is one line, not two
        with pytest.raises(Killed):
            await first.swapping.choose(1, reason="a person")
    again = Controller(directory, "hold")
    consistent, live = await again.agrees()
    assert consistent and live in (1, 2)
    # Either nothing of the choice is left, or all of it.
    assert again.swapping.pinned == (live == 1)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_engine_that_outlives_its_controller_is_believed_by_the_next_one(
    directory, monkeypatch, moment
):
    """A server that Aurora was attached to serves on with whatever was swapped in."""
    first = await serving_two(directory)
    first.swapping._policy = Decides("roll_back")
    with monkeypatch.context() as patch:
        moment(patch)
        with pytest.raises(Killed):
            await first.swapping.review()
    served = first.backend.live_version
    again = Controller(directory, "hold", backend=first.backend)
    await again.swapping.reconcile(await again.backend.status())
    assert await again.agrees() == (True, served)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_killed_twice_at_the_same_point_is_no_worse_than_once(directory, monkeypatch, moment):
    await serving_two(directory)
    for _ in range(2):
        controller = Controller(directory)
        controller.swapping._policy = Decides("roll_back")
        with monkeypatch.context() as patch:
            moment(patch)
            with contextlib.suppress(Killed):
                await controller.swapping.review()
    consistent, live = await Controller(directory, "hold").agrees()
    assert consistent and live in (1, 2, None)


async def test_version_on_trial_waits_again_after_a_restart(directory):
    first = Controller(directory)
    first.swapping.publish(directory.store.read(1))
    await first.swapping.review()
    first.swapping._policy = Says("canary")
    first.swapping.publish(directory.store.read(2))
    await first._on_change()
    await first.swapping.review()
    assert first.swapping.trials.draft.version == 2
    again = Controller(directory, "hold")
    assert await again.agrees() == (True, 1)
    assert again.lineage.challenger.version == 2 and again.backend.routes == ()
    first.swapping.challenger = None  # it need not wait: it is on trial
    await first._on_change()
    assert read_run_state(directory.state).trial == 2
    assert Controller(directory, "hold").lineage.challenger.version == 2


async def test_speculation_that_was_switched_off_stays_off_after_a_restart(directory):
    first = Controller(directory)
    first.swapping.publish(directory.store.read(1))
    await first.swapping.review()

    first.swapping._policy = Decides("disable_speculation")
    await first.swapping.review()
    assert first.swapping.is_switched_off
    again = Controller(directory, "hold")
    assert await again.agrees() == (True, None)
    assert again.swapping.is_switched_off and again.swapping.previous.version == 1


async def test_what_a_person_chose_is_pinned_after_a_restart(directory):
    first = Controller(directory)
    await first.swapping.choose(2, reason="a person")
    await first.swapping.choose(1, reason="a person")
    again = Controller(directory)
    assert again.swapping.pinned and await again.agrees() == (True, 1)
    await first.swapping.choose(None, reason="a person")
    again = Controller(directory)
    assert again.swapping.pinned and await again.agrees() == (True, None)
