"""`aurora doctor` tells what runs here, and why something does not."""

from __future__ import annotations

import importlib.metadata
import json
import socket
import sys

import pytest

from aurora_core import doctor
from aurora_core.cli import main
from aurora_core.doctor import Finding, can_run, probe, render


def finding(subject: str, state: str, detail: str = "") -> Finding:
    return Finding(subject=subject, state=state, detail=detail)


def test_only_what_cannot_run_keeps_the_quickstart_from_running():
    assert can_run([finding("gpu", "limited"), finding("torch", "ok")])
    assert not can_run([finding("gpu", "ok"), finding("torch", "cannot")])


def test_findings_are_aligned():
    text = render([finding("python", "ok", "3.11"), finding("mlflow ui", "limited", "absent")])
    assert text == "ok       python     3.11\nlimited  mlflow ui  absent"


def test_a_probe_that_crashes_is_reported_and_does_no_harm():
    assert probe("print('{\"answer\": 1}')") == ({"answer": 1}, "")
    assert probe("raise SystemExit('no such library')") == (None, "no such library")
    assert probe("import os; os.kill(os.getpid(), 9)") == (None, "exit code -9")


def test_a_full_disk_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "MIN_DISK_GIB", 1e9)
    run_disk, _ = doctor.disk(tmp_path / "runs" / "new")
    assert run_disk.state == "cannot" and "1000000000.0 GiB are needed" in run_disk.detail


def test_too_little_memory_is_found(monkeypatch):
    monkeypatch.setattr(doctor, "MIN_MEMORY_GIB", 1e9)
    [memory] = doctor.memory()
    assert memory.state == "cannot" and "the quickstart takes up to" in memory.detail


def test_a_port_in_use_is_found():
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        assert not doctor.is_free(port)
    assert doctor.is_free(port)


def test_a_target_that_is_not_here_yet_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("AURORA_CACHE_DIR", str(tmp_path))
    [target] = doctor.target(network=False)
    assert (target.state, target.detail) == ("limited", "the quickstart's is not downloaded yet")


@pytest.mark.slow
def test_the_whole_examination_as_json(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AURORA_CACHE_DIR", str(tmp_path))
    code = main(["doctor", "--offline", "--json", "--run-dir", str(tmp_path)])
    findings = {item["subject"]: item for item in json.loads(capsys.readouterr().out)}
    assert code == (2 if any(item["state"] == "cannot" for item in findings.values()) else 0)
    assert findings.keys() >= {
        "python", "cores", "memory", "run disk", "cache disk", "torch", "gpu", "kernels",
        "plugins", "mlflow ui", "target",
    }  # fmt: skip
    assert sys.executable in findings["python"]["detail"]
    assert findings["torch"]["detail"].startswith(importlib.metadata.version("torch"))
    assert findings["kernels"]["state"] == "ok"
