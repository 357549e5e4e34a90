"""Drafter versions on disk: complete or absent, checked when read, never pruned while in use."""

from __future__ import annotations

import hashlib
import json
import math
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_core.errors import CheckpointError
from aurora_core.records import DraftVersion, Holdout
from aurora_core.versions import RunState, VersionStore, read_run_state, write_run_state


def write_weights(path: Path, content: bytes = b"weights") -> None:
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(content)


def stage(store: VersionStore, write=write_weights, version: int | None = None) -> DraftVersion:
    return store.stage(
        store.next_version() if version is None else version,
        write,
        parent=None,
        speculator="eagle3",
        target_fingerprint="target",
        global_step=12,
        num_tokens_trained=340,
        metrics={"train/loss": 1.5},
        holdout=Holdout(
            live_version=None,
            num_anchors=(4, 5),
            candidate_accepted=((2, 1), (3, 0)),
            live_accepted=(),
        ),
    )


def test_staged_version_is_read_back_equal(tmp_path):
    store = VersionStore(tmp_path / "versions")
    assert store.next_version() == 1
    draft = stage(store)
    assert Path(draft.path) == tmp_path / "versions" / "v000001"
    assert draft.checksum == hashlib.sha256(b"weights").hexdigest()
    other_process = VersionStore(tmp_path / "versions")
    assert other_process.read(1) == other_process.verify(1) == draft
    assert other_process.next_version() == 2
    assert sorted(path.name for path in Path(draft.path).iterdir()) == [
        "config.json",
        "model.safetensors",
        "version.json",
    ]


def test_list_is_in_order_of_numbers(tmp_path):
    store = VersionStore(tmp_path)
    drafts = [stage(store) for _ in range(3)]
    assert store.list() == tuple(drafts)
    assert VersionStore(tmp_path / "none").list() == ()


def test_non_finite_metrics_do_not_make_a_version_unreadable(tmp_path):
    store = VersionStore(tmp_path)
    store.stage(
        1,
        write_weights,
        parent=None,
        speculator="eagle3",
        target_fingerprint="target",
        global_step=1,
        num_tokens_trained=1,
        metrics={"train/loss": math.nan, "train/norm": math.inf},
    )
    metrics = store.read(1).metrics
    assert math.isnan(metrics["train/loss"])
    assert metrics["train/norm"] == math.inf


def test_failed_write_leaves_nothing(tmp_path):
    store = VersionStore(tmp_path)

    def fail(path: Path) -> None:
        write_weights(path)
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        stage(store, fail)
    assert list(tmp_path.iterdir()) == []
    assert stage(store).version == 1


def test_version_without_weights_is_refused(tmp_path):
    store = VersionStore(tmp_path)
    with pytest.raises(CheckpointError, match=r"version 1 .*model\.safetensors cannot be read"):
        stage(store, lambda path: (path / "config.json").touch())
    assert list(tmp_path.iterdir()) == []


def test_existing_version_is_never_overwritten(tmp_path):
    store = VersionStore(tmp_path)
    draft = stage(store)
    with pytest.raises(CheckpointError, match="version 1 exists already"):
        stage(store, lambda path: write_weights(path, b"other"), version=1)
    assert store.verify(1) == draft


def test_moved_run_directory_still_reads(tmp_path):
    stage(VersionStore(tmp_path / "old"))
    (tmp_path / "old").rename(tmp_path / "new")
    assert VersionStore(tmp_path / "new").verify(1).path == str(tmp_path / "new" / "v000001")


def test_missing_version_names_those_that_exist(tmp_path):
    store = VersionStore(tmp_path)
    with pytest.raises(CheckpointError, match=r"version 7 is not in .*; it holds none"):
        store.read(7)
    stage(store)
    stage(store)
    with pytest.raises(CheckpointError, match=r"version 7 is not in .*; it holds 1, 2"):
        store.verify(7)
    with pytest.raises(CheckpointError, match="version -1 is not a version number"):
        store.read(-1)


def test_changed_weights_are_found_by_verify(tmp_path):
    store = VersionStore(tmp_path)
    weights = Path(stage(store).path) / "model.safetensors"
    weights.write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match=r"version 1 in .* is damaged: .*; delete the folder"):
        store.verify(1)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"is broken: model\.safetensors cannot be read"):
        store.verify(1)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (None, r"version\.json cannot be read: No such file"),
        ("", "Invalid JSON"),
        ("{}", "version: Field required"),
        ('{"version": 9', "Invalid JSON"),
    ],
)
def test_broken_record_is_named_and_listed_versions_go_on(tmp_path, caplog, record, problem):
    store = VersionStore(tmp_path)
    path = Path(stage(store).path) / "version.json"
    second = stage(store)
    path.unlink() if record is None else path.write_text(record)
    with pytest.raises(CheckpointError, match=f"version 1 in .* is broken: .*{problem}.*; delete"):
        store.read(1)
    assert store.list() == store.list() == (second,)
    assert caplog.text.count("version 1 in") == 1
    assert store.next_version() == 3


def test_record_of_another_version_is_refused(tmp_path):
    store = VersionStore(tmp_path)
    path = Path(stage(store).path)
    path.rename(tmp_path / "v000005")
    with pytest.raises(CheckpointError, match="describes version 1"):
        store.read(5)


def test_killed_learner_leaves_no_version_and_the_next_stage_cleans_up(tmp_path):
    code = f"""
        import os, pathlib
        from aurora_core.versions import VersionStore

        def die(path):
            (path / "model.safetensors").write_bytes(b"half")
            os.kill(os.getpid(), 9)

        VersionStore(pathlib.Path({str(tmp_path)!r})).stage(
            1, die, parent=None, speculator="x", target_fingerprint="t", global_step=1,
            num_tokens_trained=1,
        )
    """
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(code)])
    assert process.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["v000001.partial"]
    store = VersionStore(tmp_path)
    assert store.list() == ()
    assert store.verify(stage(store).version).version == 1
    assert [path.name for path in tmp_path.iterdir()] == ["v000001"]


def test_foreign_files_in_the_folder_are_left_alone(tmp_path):
    for name in ("notes.txt", "v1", "vx.partial", "my.partial"):
        (tmp_path / name).mkdir()
    store = VersionStore(tmp_path)
    assert store.next_version() == 1
    stage(store)
    store.prune(state=RunState(), keep_last=1)
    assert {path.name for path in tmp_path.iterdir()} == {
        "notes.txt", "v1", "vx.partial", "my.partial", "v000001"
    }  # fmt: skip


def test_what_is_no_version_is_said_to_be_none_and_goes_with_its_number(tmp_path):
    store = VersionStore(tmp_path)
    first = stage(store)
    (tmp_path / "v000002").write_text("a file")
    (tmp_path / "v000003").symlink_to("v000003")
    (tmp_path / "v0000004").mkdir()  # another spelling of a number
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (tmp_path / "v000005").symlink_to(elsewhere)
    for number in (2, 3):
        with pytest.raises(CheckpointError, match=f"version {number} in .* it is no folder; delet"):
            store.verify(number)
    assert store.list() == (first,) and store.numbers() == (1, 2, 3, 5)
    last = stage(store)
    assert last.version == 6
    assert store.prune(state=RunState(champion=1), keep_last=1) == (2, 3, 5)
    assert store.list() == (first, last)
    assert {path.name for path in tmp_path.iterdir()} == {
        "v000001", "v0000004", "v000006", "elsewhere"
    }  # fmt: skip
    assert (elsewhere / "kept").exists()


def test_file_in_the_place_of_a_new_version_does_not_keep_it_from_being_written(tmp_path):
    (tmp_path / "v000001.partial").write_text("a file")
    (tmp_path / "v000002.deleted").symlink_to("nowhere")
    store = VersionStore(tmp_path)
    assert stage(store).version == 1
    store.prune(state=RunState(), keep_last=1)
    assert [path.name for path in tmp_path.iterdir()] == ["v000001"]


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 7),
    champion=st.none() | st.integers(1, 7),
    previous=st.none() | st.integers(1, 7),
    keep_last=st.integers(0, 5),
    max_bytes=st.none() | st.integers(0, 4000),
)
def test_prune_never_deletes_what_is_in_use(count, champion, previous, keep_last, max_bytes):
    with tempfile.TemporaryDirectory() as folder:
        store = VersionStore(Path(folder))
        for number in range(count):
            (store.directory(number + 1)).mkdir()
            (store.directory(number + 1) / "model.safetensors").write_bytes(b"x" * 500)
        state = RunState(champion=champion, previous=previous)
        deleted = store.prune(state=state, keep_last=keep_last, max_bytes=max_bytes)
        left = {number for number in range(1, count + 1) if store.directory(number).exists()}
        assert left == set(range(1, count + 1)) - set(deleted)
        protected = {champion, previous} | set(range(count - max(keep_last, 1) + 1, count + 1))
        assert not protected & set(deleted)
        if max_bytes is None:
            assert left <= protected
        else:
            assert len(left) * 500 <= max_bytes or left <= protected
        assert list(deleted) == sorted(deleted)


def test_prune_clears_what_a_killed_prune_left(tmp_path):
    store = VersionStore(tmp_path)
    stage(store)
    (tmp_path / "v000001").rename(tmp_path / "v000001.deleted")
    assert store.prune(state=RunState(), keep_last=1) == ()
    assert list(tmp_path.iterdir()) == []


def test_run_state_comes_back_and_replaces_at_once(tmp_path):
    path = tmp_path / "run" / "state.json"
    assert read_run_state(path) == RunState()
    write_run_state(path, RunState(champion=3, previous=1, challenger=4))
    write_run_state(path, RunState(champion=4, previous=3))
    assert read_run_state(path) == RunState(champion=4, previous=3, challenger=None)
    assert json.loads(path.read_text())["champion"] == 4
    assert [entry.name for entry in path.parent.iterdir()] == ["state.json"]


@pytest.mark.parametrize("text", ["", "{", '{"champion": "three"}', "[]"])
def test_broken_run_state_is_refused_in_one_sentence(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"run state '.*state\.json' cannot be read; delete"):
        read_run_state(tmp_path / "state.json")
