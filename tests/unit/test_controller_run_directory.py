import errno
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from aurora_core.config import RunConfig
from aurora_core.controller import run_directory
from aurora_core.controller.record_file import RecordFile
from aurora_core.controller.run_directory import (
    RunDirectory,
    append_line,
    append_lines,
    read_lines,
    replace_file,
    without_secrets,
)
from aurora_core.errors import ConfigError
from aurora_core.records import DraftVersion, TargetSpec
from aurora_core.versions import RunState

TARGET = TargetSpec(
    name="tiny",
    path="/nowhere",
    architecture="LlamaForCausalLM",
    fingerprint="f1",
    tokenizer_fingerprint="t1",
    vocab_size=256,
    hidden_size=32,
    num_layers=4,
    max_position_embeddings=512,
)


def test_second_run_on_the_same_directory_is_refused_until_the_first_one_is_gone(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from aurora_core.controller.run_directory import RunDirectory\n"
        "with RunDirectory(pathlib.Path(sys.argv[1])).locked():\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(ConfigError, match="in use by another aurora run; stop that one or set"),
            RunDirectory(tmp_path).locked(),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with RunDirectory(tmp_path).locked():  # a killed run leaves no lock behind
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_run_directory_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="not writable"), RunDirectory(tmp_path / "run").locked():
        pass


def test_run_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(ConfigError, match="set another run_dir"), directory.locked():
        pass


@pytest.mark.parametrize("path", ["file", "file/run", "circle", "circle/run", "half", "x" * 300])
def test_directory_that_cannot_be_made_is_known_before_and_nothing_is_created(tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "versions").touch()
    before = sorted(tmp_path.rglob("*"))
    directory = RunDirectory(tmp_path / path)
    with pytest.raises(ConfigError, match=r"is not writable: .*; set another run_dir"):
        directory.check_usable()
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ConfigError, match=r"is not writable: .*; set another run_dir"):
        directory.locked().__enter__()


def test_directory_that_can_be_made_is_not_made_by_looking(tmp_path):
    RunDirectory(tmp_path / "runs" / "new").check_usable()
    assert not list(tmp_path.iterdir())


def test_line_that_a_crash_cut_off_is_removed_before_the_next_run_writes(tmp_path):
    directory = RunDirectory(tmp_path)
    with directory.locked():
        append_line(directory.verdicts, {"a": 1})
    with directory.verdicts.open("a") as stream:
        stream.write('{"a": 2, "b"')
    with directory.locked():
        append_line(directory.verdicts, {"a": 3})
    assert read_lines(directory.verdicts) == [{"a": 1}, {"a": 3}]


def test_records_of_requests_are_for_the_owner_alone(tmp_path):
    append_line(tmp_path / "requests.jsonl", {"a": 1})
    assert (tmp_path / "requests.jsonl").stat().st_mode & 0o077 == 0


def test_failed_write_leaves_the_old_file(tmp_path):
    replace_file(tmp_path / "report.json", "old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(tmp_path / "report.json", "\ud800")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("report.json", "old")
    ]


def test_half_a_line_that_a_full_disk_took_is_removed_again(tmp_path, monkeypatch):
    append_line(tmp_path / "x.jsonl", {"a": 1})
    write = os.write

    def write_a_little(descriptor, data):
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:10])

    monkeypatch.setattr(os, "write", write_a_little)
    with pytest.raises(OSError, match="No space left"):
        append_lines(tmp_path / "x.jsonl", [{"b": "long enough"}, {"c": "likewise"}])
    monkeypatch.undo()
    append_line(tmp_path / "x.jsonl", {"d": 2})
    assert read_lines(tmp_path / "x.jsonl") == [{"a": 1}, {"d": 2}]


def test_record_that_does_not_fit_is_dropped_counted_and_told_about_once(tmp_path):
    (tmp_path / "requests.jsonl").symlink_to("/dev/full")
    notes = []
    records = RecordFile(tmp_path / "requests.jsonl", notes.append)
    records.append({"a": 1}, {"a": 2})
    records.append({"a": 3})
    assert records.num_dropped == 3
    assert notes == [
        "requests.jsonl cannot be written: No space left on device; serving goes on, and lines "
        "that do not fit are dropped and counted"
    ]
    (tmp_path / "requests.jsonl").unlink()
    records.append({"a": 4})
    assert read_lines(tmp_path / "requests.jsonl") == [{"a": 4}] and records.num_dropped == 3


def test_disk_that_is_full_before_anything_runs_is_the_users_to_mend(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path)
    (tmp_path / "resolved.yaml").mkdir()
    config = RunConfig.model_validate({"speculator": "eagle3", "backend": "torch"})
    with pytest.raises(ConfigError, match=r"is not writable: .*; set another run_dir"):
        directory.write_resolved(config, {})
    assert not list(tmp_path.glob(".resolved*"))


def test_log_file_that_does_not_fit_loses_lines_and_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logging.root, "handlers", [])
    directory = RunDirectory(tmp_path)
    directory.logs.mkdir()
    (directory.logs / "controller.log").symlink_to("/dev/full")
    with directory.logged():
        logging.getLogger("aurora_core.anything").warning("lost")
    assert capsys.readouterr().err == ""


def test_resolved_configuration_holds_no_secrets_and_all_else(tmp_path):
    config = RunConfig.model_validate(
        {
            "speculator": "eagle3",
            "backend": {"name": "torch", "api_key": "k-123", "url": "http://me:pw@host:1/v1"},
            "num_speculative_tokens": 5,
            "tracking": {"uri": "https://user:hunter2@mlflow.example"},
            "run_dir": str(tmp_path),
        }
    )
    RunDirectory(tmp_path).write_resolved(config, {"target": "x"})
    text = (tmp_path / "resolved.yaml").read_text()
    assert not any(secret in text for secret in ("k-123", "pw", "hunter2"))
    document = yaml.safe_load(text)
    assert document["config"]["num_speculative_tokens"] == 5
    assert document["config"]["backend"]["url"] == "http://***@host:1/v1"
    assert document["resolved"] == {"target": "x"}


def test_words_that_only_look_like_secrets_are_kept():
    plain = {"max_tokens": "96", "tokenizer": "t", "tokens": ["a"], "auth_token": "s"}
    assert without_secrets(plain) == {**plain, "auth_token": "***"}


def _publish(
    directory: RunDirectory, *, speculator: str, fingerprint: str, version: int = 1
) -> DraftVersion:
    def write(path: Path) -> None:
        (path / "model.safetensors").write_bytes(b"w")

    return directory.store.stage(
        version,
        write,
        parent=None,
        speculator=speculator,
        target_fingerprint=fingerprint,
        global_step=1,
        num_tokens_trained=1,
    )


def test_versions_that_are_deleted_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(run_directory, "_KEEP_VERSIONS", 1)
    monkeypatch.setattr(run_directory, "_MAX_VERSION_BYTES", 1)
    directory = RunDirectory(tmp_path)
    drafts = [
        _publish(directory, version=version, speculator="eagle3", fingerprint="f1")
        for version in (1, 2, 3)
    ]
    assert directory.remember(RunState(champion=1)) == (drafts[1],)
    assert directory.remember(RunState(champion=1)) == ()


def test_directory_of_another_target_or_speculator_is_not_continued(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.check_resumable(TARGET, "eagle3")  # empty: nothing to continue
    _publish(directory, speculator="eagle3", fingerprint="f1")
    directory.check_resumable(TARGET, "eagle3")
    with pytest.raises(ConfigError, match="drafters of speculator 'eagle3', not 'medusa'"):
        directory.check_resumable(TARGET, "medusa")
    other = RunDirectory(tmp_path / "other")
    _publish(other, speculator="eagle3", fingerprint="f2")
    with pytest.raises(ConfigError, match="drafters of another target than 'tiny'"):
        other.check_resumable(TARGET, "eagle3")


def test_lines_are_json_objects(tmp_path):
    append_line(tmp_path / "x.jsonl", {"reason": "two\nlines"})
    [line] = (tmp_path / "x.jsonl").read_text().splitlines()
    assert json.loads(line) == {"reason": "two\nlines"}


def test_log_file_holds_more_than_standard_error_shows(tmp_path, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler(shown)])
    directory = RunDirectory(tmp_path)
    logger = logging.getLogger("aurora_core.anything")
    with directory.locked(), directory.logged():
        logger.info("a detail")
        logger.warning("a warning")
    logger.warning("afterwards")
    text = (directory.logs / "controller.log").read_text()
    assert "a detail" in text and "a warning" in text and "afterwards" not in text
    assert shown.getvalue() == "a warning\nafterwards\n"
