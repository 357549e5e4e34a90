"""What is written down about versions in use, on disks that fail and to a registry that mirrors."""

import errno

import anyio
import pytest

from aurora_core.controller import run_directory
from aurora_core.controller.bookkeeping import Bookkeeping
from aurora_core.controller.run_directory import RunDirectory
from aurora_core.versions import RunState, read_run_state, write_run_state


class Registry:
    """Remembers what it is told."""

    def __init__(self):
        self.aliases, self.retired = [], []

    def set_live(self, live, previous):
        self.aliases.append((live and live.version, previous and previous.version))

    def retire(self, draft):
        self.retired.append(draft.version)


class Harness:
    def __init__(self, tmp_path):
        self.directory = RunDirectory(tmp_path)
        self.registry, self.notes = Registry(), []
        self.bookkeeping = Bookkeeping(self.directory, self.registry, note=self.notes.append)

    def publish(self, version):
        return self.directory.store.stage(
            version,
            lambda path: (path / "model.safetensors").write_bytes(b"w"),
            parent=None,
            speculator="fake",
            target_fingerprint="f",
            global_step=1,
            num_tokens_trained=1,
        )

    @property
    def state(self):
        return read_run_state(self.directory.state)


@pytest.fixture
def harness(tmp_path):
    return Harness(tmp_path)


@pytest.fixture
def full_disk(monkeypatch):
    """Let state.json fail for as long as the list is not empty."""
    failing = [True]

    def write(path, state):
        if failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_run_state(path, state)

    monkeypatch.setattr(run_directory, "write_run_state", write)
    return failing


async def test_state_and_aliases_say_the_same(harness):
    one, two = harness.publish(1), harness.publish(2)
    await harness.bookkeeping.remember(one, None, None)
    await harness.bookkeeping.remember(two, one, None)
    await harness.bookkeeping.remember(two, one, harness.publish(3))
    assert harness.state == RunState(champion=2, previous=1, challenger=3)
    assert harness.registry.aliases == [(1, None), (2, 1)]  # once per change


async def test_versions_deleted_for_room_are_deleted_from_the_registry_too(harness, monkeypatch):
    monkeypatch.setattr(run_directory, "_KEEP_VERSIONS", 1)
    monkeypatch.setattr(run_directory, "_MAX_VERSION_BYTES", 1)
    drafts = [harness.publish(version) for version in range(1, 6)]
    await harness.bookkeeping.remember(drafts[3], drafts[1], None)
    assert harness.registry.retired == [1, 3]
    assert [draft.version for draft in harness.directory.store.list()] == [2, 4, 5]


async def test_full_disk_is_told_about_once_and_tried_until_it_takes_the_newest_state(
    harness, full_disk
):
    one, two = harness.publish(1), harness.publish(2)
    await harness.bookkeeping.remember(one, None, None)
    await harness.bookkeeping.remember(two, one, None)
    await harness.bookkeeping.retry()
    assert harness.state == RunState()
    [note] = harness.notes
    assert note.startswith("state.json cannot be written: No space left on device; serving goes on")
    full_disk.clear()
    await harness.bookkeeping.retry()
    assert harness.state == RunState(champion=2, previous=1)
    assert harness.notes[1:] == ["state.json is written again"]


async def test_retry_does_not_wait_for_a_disk_that_hangs(harness, monkeypatch):
    entered, leave = anyio.Event(), anyio.Event()

    def hang(state):
        anyio.from_thread.run_sync(entered.set)
        anyio.from_thread.run(leave.wait)
        return ()

    monkeypatch.setattr(harness.directory, "remember", hang)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(harness.bookkeeping.remember, None, None, None)
        await entered.wait()
        with anyio.fail_after(10):
            await harness.bookkeeping.retry()
        leave.set()


async def test_without_tracking_only_the_disk_is_written(tmp_path):
    harness = Harness(tmp_path)
    bookkeeping = Bookkeeping(harness.directory, None, note=harness.notes.append)
    await bookkeeping.remember(harness.publish(1), None, None)
    assert harness.state == RunState(champion=1)
