"""A person's commands to a running controller: through the socket, and what becomes of them."""

from __future__ import annotations

import contextlib
import json
import socket
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from aurora_core.controller.control_socket import (
    SOCKET,
    LetGo,
    Promote,
    RollBack,
    SwitchOff,
    give_command,
    serve_commands,
)
from aurora_core.controller.operator import Operator
from aurora_core.errors import BackendError, CheckpointError, ConfigError
from aurora_core.records import DraftVersion, SwapReceipt
from aurora_core.versions import VersionStore


class Told:
    """Stands in for the swapping."""

    def __init__(self, previous: int | None = None, refuse: bool = False) -> None:
        self.chosen: list[int | None] = []
        self.let = 0
        self.refuse = refuse
        self.previous = None if previous is None else draft(previous)

    async def choose(self, version: int | None, *, reason: str) -> SwapReceipt:
        if self.refuse:
            raise BackendError("the engine is busy")
        self.chosen.append(version)
        return SwapReceipt(version=version or -1, checksum="", load_ms=1.0, stall_ms=0.25)

    async def let_go(self, *, reason: str) -> None:
        self.let += 1


def draft(version: int) -> DraftVersion:
    return DraftVersion(
        version=version, path="p", parent=None, speculator="s", target_fingerprint="f",
        global_step=1, num_tokens_trained=1, created=0.0, checksum="",
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    store = VersionStore(tmp_path / "versions")
    store.stage(
        1,
        lambda path: (path / "model.safetensors").write_bytes(b"weights"),  # type: ignore[arg-type,return-value] - the count is of no interest
        parent=None,
        speculator="s",
        target_fingerprint="f",
        global_step=1,
        num_tokens_trained=1,
    )
    return store


def operator(told: Told, store: VersionStore, *, ending: bool = False) -> Operator:
    return Operator(told, store, is_ending=lambda: ending)  # type: ignore[arg-type] - a stand-in


@contextlib.asynccontextmanager
async def listening(run_dir: Path, obey):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_commands, run_dir, obey)
        with anyio.fail_after(30):
            while not (run_dir / SOCKET).exists():
                await anyio.sleep(0.005)
        yield partial(anyio.to_thread.run_sync)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("command", "chosen", "sentence"),
    [
        (Promote(version=1), [1], "version 1 is live; decoding waited 0.2 ms, and it stays until"),
        (RollBack(version=1), [1], "rolled back to version 1;"),
        (RollBack(), [1], "rolled back to version 1;"),
        (SwitchOff(), [None], "speculation is switched off;"),
        (LetGo(), [], "the swap policy decides again"),
    ],
)
async def test_commands_reach_the_swapping(store, command, chosen, sentence):
    told = Told(previous=1)
    assert (await operator(told, store).obey(command)).startswith(sentence)
    assert told.chosen == chosen and told.let == (command == LetGo())


@pytest.mark.parametrize(
    ("command", "error", "sentence"),
    [
        (Promote(version=7), CheckpointError, "version 7 is not in .*; it holds 1"),
        (RollBack(), ConfigError, "no previous version to roll back to; name one, as in `aurora r"),
    ],
)
async def test_what_cannot_be_done_is_said_and_nothing_changes(store, command, error, sentence):
    told = Told()
    with pytest.raises(error, match=sentence):
        await operator(told, store).obey(command)
    assert told.chosen == []


async def test_engine_that_refuses_is_said_to_have_changed_nothing(store):
    with pytest.raises(BackendError, match="nothing was changed: the engine is busy"):
        await operator(Told(refuse=True), store).obey(Promote(version=1))


async def test_run_that_ends_takes_no_commands(store):
    with pytest.raises(ConfigError, match="the run is ending"):
        await operator(Told(), store, ending=True).obey(Promote(version=1))


async def test_damaged_version_is_refused_before_the_engine_hears_of_it(store):
    (store.directory(1) / "model.safetensors").write_bytes(b"other")
    told = Told()
    with pytest.raises(CheckpointError, match=r"version 1 .* is damaged"):
        await operator(told, store).obey(Promote(version=1))
    assert told.chosen == []


async def test_socket_carries_commands_sentences_and_errors(tmp_path, store):
    run_dir = tmp_path / ("long" * 30) / "run"  # longer than a UNIX socket's path may be
    run_dir.mkdir(parents=True)
    (run_dir / SOCKET).touch()  # left by a controller that was killed
    told = Told()
    async with listening(run_dir, operator(told, store).obey) as on_thread:
        with anyio.fail_after(30):
            while not (run_dir / SOCKET).is_socket():  # the old file goes before it comes
                await anyio.sleep(0.005)
        assert (run_dir / SOCKET).stat().st_mode & 0o077 == 0
        answer = await on_thread(give_command, run_dir, Promote(version=1))
        assert answer.startswith("version 1 is live")
        with pytest.raises(CheckpointError, match="version 9 is not in"):
            await on_thread(give_command, run_dir, Promote(version=9))
        reply = await on_thread(_send, run_dir, b'{"command": "explode"}\n')
        assert reply == {"error": "this run does not know that command", "kind": "ConfigError"}
        assert await on_thread(_send, run_dir, b"half a line") == {}
        await on_thread(give_command, run_dir, LetGo())
    assert told.chosen == [1] and told.let == 1
    assert not (run_dir / SOCKET).exists()


def _send(run_dir: Path, data: bytes) -> object:
    import os

    here = os.open(run_dir, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"/proc/self/fd/{here}/{SOCKET}")
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return json.loads(connection.makefile("rb").readline() or b"{}")
    finally:
        os.close(here)


async def test_folder_in_the_place_of_the_socket_costs_the_commands_alone(tmp_path, store, caplog):
    (tmp_path / SOCKET).mkdir()
    with anyio.fail_after(30):
        await serve_commands(tmp_path, operator(Told(), store).obey)
    assert "no commands are taken" in caplog.text and (tmp_path / SOCKET).is_dir()


def test_no_run_is_said_to_be_none(tmp_path):
    with pytest.raises(ConfigError, match=r"no run is using .*; start it with `aurora run`"):
        give_command(tmp_path, LetGo())
    with pytest.raises(ConfigError, match="there is no run directory"):
        give_command(tmp_path / "none", LetGo())
