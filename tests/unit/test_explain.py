"""`aurora explain`: logged verdicts with their numbers, decided once more."""

from __future__ import annotations

import json

import pytest
import yaml

from aurora_core.cli import main
from aurora_core.config import GuardSection, RunConfig
from aurora_core.interfaces import Options
from aurora_core.policies import AlwaysSwap, Guard
from aurora_core.records import DraftVersion, Evidence, Verdict
from aurora_core.wire import to_dict


@pytest.fixture
def run_dir(tmp_path):
    """A run whose policy promoted version 2, as `always` does, and whose engine took it."""
    config = RunConfig.model_validate(
        {"speculator": "fake", "backend": "fake", "swap_policy": "always", "plugins": ()}
    )
    document = {"config": config.model_dump(mode="json"), "resolved": {}}
    (tmp_path / "resolved.yaml").write_text(yaml.safe_dump(document))
    draft = DraftVersion(
        version=2, path="p", parent=None, speculator="fake", target_fingerprint="f",
        global_step=1, num_tokens_trained=1, created=0.0, checksum="",
    )  # fmt: skip
    evidence = Evidence(
        candidate=draft, live=None, previous=None, serving=(),
        num_requests_since_swap=3, seconds_since_swap=4.0,
    )  # fmt: skip
    verdict = Guard(AlwaysSwap(Options()), GuardSection()).decide(evidence)
    write(tmp_path, line("verdict", verdict, evidence), {"kind": "swap", "time": 1.0, "version": 2})
    return tmp_path


def line(kind, verdict, evidence):
    return {
        "kind": kind, "time": 0.0, "version": evidence.candidate.version,
        "verdict": to_dict(verdict), "evidence": to_dict(evidence),
    }  # fmt: skip


def write(run_dir, *lines, end="\n"):
    with (run_dir / "verdicts.jsonl").open("a") as file:
        file.write("\n".join(map(json.dumps, lines)) + end)


def explain(run_dir, capsys, *arguments):
    status = main(["explain", *arguments, "--run-dir", str(run_dir)])
    return status, capsys.readouterr()


def test_verdicts_are_printed_and_come_out_the_same(run_dir, capsys):
    status, printed = explain(run_dir, capsys, "2")
    assert status == 0
    lines = printed.out.splitlines()
    assert lines[0].endswith("promote: version 2 is complete")
    assert lines[1] == "    replayed: the same verdict"
    assert lines[2].endswith("went live")


def test_another_policy_is_asked_what_it_would_have_said(run_dir, capsys):
    _, printed = explain(run_dir, capsys, "2", "--policy", "gate")
    assert "replayed: DIFFERENT: hold: version 2 was not scored" in printed.out


def test_numbers_are_printed_and_another_reason_is_told_apart(run_dir, capsys):
    draft = DraftVersion(
        version=5, path="p", parent=None, speculator="fake", target_fingerprint="f",
        global_step=1, num_tokens_trained=1, created=0.0, checksum="",
    )  # fmt: skip
    evidence = Evidence(
        candidate=draft, live=None, previous=None, serving=(),
        num_requests_since_swap=3, seconds_since_swap=4.0,
    )  # fmt: skip
    verdict = Verdict(action="promote", reason="because", numbers={"gain": 0.25})
    broken = line("verdict", verdict, evidence)
    write(run_dir, broken, broken | {"evidence": {"candidate": 3}})
    _, printed = explain(run_dir, capsys, "5")
    assert "    gain  0.25" in printed.out
    assert "replayed: the same action for another reason: version 5 is complete" in printed.out
    assert "replayed: not possible: the evidence was written by another release" in printed.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["9"], "nothing was decided on version 9 in .*; there are verdicts on 2"),
        (["2", "--policy", "nobody"], "nobody"),
    ],
)
def test_what_cannot_be_explained_is_said(run_dir, capsys, arguments, sentence):
    status, printed = explain(run_dir, capsys, *arguments)
    assert status == 2
    import re

    assert re.search(sentence, printed.err)


def test_damaged_line_is_named_and_one_being_written_is_left_out(run_dir, capsys):
    with (run_dir / "verdicts.jsonl").open("a") as file:
        file.write('{"kind": "ver')
    assert explain(run_dir, capsys, "2")[0] == 0
    write(run_dir, {})
    status, printed = explain(run_dir, capsys, "2")
    assert status == 2 and "line 3 of" in printed.err and "is damaged" in printed.err


@pytest.mark.parametrize("damage", ["3", "[]", "{}", '{"kind": "swap"}', "null"])
def test_a_line_that_is_no_record_is_damaged(run_dir, capsys, damage):
    with (run_dir / "verdicts.jsonl").open("a") as file:
        file.write(f"{damage}\n")
    status, printed = explain(run_dir, capsys, "2")
    assert status == 2 and "line 3 of" in printed.err and "is damaged" in printed.err


def test_bytes_that_are_no_text_are_damage(run_dir, capsys):
    with (run_dir / "verdicts.jsonl").open("ab") as file:
        file.write(b'{"kind": "\xff\xfe\x00"}\n')
    status, printed = explain(run_dir, capsys, "2")
    assert status == 2 and "line 3 of" in printed.err and "is damaged" in printed.err
    (run_dir / "resolved.yaml").write_bytes(b"config: \xff\xfe\x00")
    status, printed = explain(run_dir, capsys, "2")
    assert status == 2 and "cannot be read as the configuration of a run" in printed.err


def test_a_run_that_has_decided_nothing_yet_says_so(run_dir, capsys):
    write(run_dir, {"kind": "swap", "time": 2.0, "version": -1})
    assert "there are verdicts on 2\n" in explain(run_dir, capsys, "9")[1].err
    (run_dir / "verdicts.jsonl").unlink()
    status, printed = explain(run_dir, capsys, "2")
    assert status == 2 and printed.err.endswith("there are verdicts on no version\n")


def test_directory_without_a_run_is_refused(tmp_path, capsys):
    status, printed = explain(tmp_path, capsys, "2")
    assert status == 2 and "there is no run in" in printed.err
    (tmp_path / "resolved.yaml").write_text("config: 3")
    status, printed = explain(tmp_path, capsys, "2")
    assert status == 2 and "cannot be read as the configuration of a run" in printed.err
