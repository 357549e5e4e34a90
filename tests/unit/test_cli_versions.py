"""`aurora versions` and `aurora ui` on run directories of every kind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from aurora_core import mlflow_ui
from aurora_core.cli import main
from aurora_core.cli.versions import as_text
from aurora_core.errors import ConfigError
from aurora_core.records import Holdout
from aurora_core.versions import RunState, VersionStore, write_run_state


def write_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that published three versions, of which the second one is live."""
    store = VersionStore(tmp_path / "versions")
    for version in (1, 2, 3):
        holdout = Holdout(
            live_version=None,
            num_anchors=(6, 4),
            candidate_accepted=((version, 1), (version, 0)),
            live_accepted=(),
        )
        store.stage(
            version,
            write_weights,
            parent=version - 1 or None,
            speculator="eagle3",
            target_fingerprint="f",
            global_step=100 * version,
            num_tokens_trained=1000 * version,
            holdout=holdout if version > 1 else None,
        )
    write_run_state(tmp_path / "state.json", RunState(champion=2, previous=1, challenger=3))
    return tmp_path


def test_versions_are_listed_with_their_use(run_dir):
    state = RunState(champion=2, previous=1, challenger=3)
    found = VersionStore(run_dir / "versions").list()
    lines = as_text(found, state, now=found[0].created + 7200).splitlines()
    assert lines[0].split() == ["version", "steps", "tokens", "acceptance", "length", "age"]
    # (2 * 2 + 1) accepted at 10 positions, and (2 * 3 + 1).
    assert [line.split() for line in lines[1:]] == [
        ["1", "100", "1000", "-", "2", "h", "previous"],
        ["2", "200", "2000", "1.50", "2", "h", "live"],
        ["3", "300", "3000", "1.70", "2", "h", "challenger"],
    ]


def test_versions_as_json(run_dir, capsys):
    assert main(["versions", "--run-dir", str(run_dir), "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert listing["champion"] == 2
    assert [version["global_step"] for version in listing["versions"]] == [100, 200, 300]


def test_a_run_without_versions_says_so(tmp_path, capsys):
    assert main(["versions", "--run-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no versions yet\n"


def test_a_missing_run_directory_is_one_sentence(tmp_path, capsys):
    assert main(["versions", "--run-dir", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith(
        f"aurora: there is no run directory '{tmp_path}/none'; give the directory of a run, as in "
    )


def test_the_interface_serves_the_runs_store_on_loopback(tmp_path):
    pytest.importorskip("flask", reason="the extra `ui` is not installed")
    (tmp_path / "mlflow.db").touch()
    command = mlflow_ui.command(tmp_path, port=5050)
    assert command[:3] == [sys.executable, "-m", "mlflow"]
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert options["--backend-store-uri"] == f"sqlite:///{tmp_path}/mlflow.db"
    assert (options["--host"], options["--port"]) == ("127.0.0.1", "5050")


def test_the_interface_sends_no_telemetry_unless_told_to(monkeypatch):
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    assert mlflow_ui.environment()["MLFLOW_DISABLE_TELEMETRY"] == "true"
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    assert mlflow_ui.environment()["MLFLOW_DISABLE_TELEMETRY"] == "false"


def test_a_run_without_a_store_is_one_sentence(tmp_path):
    pytest.importorskip("flask", reason="the extra `ui` is not installed")
    with pytest.raises(ConfigError, match=r"has no MLflow store \(mlflow.db\); give the directory"):
        mlflow_ui.command(tmp_path, port=5050)


def test_a_missing_interface_names_the_extra(tmp_path, monkeypatch):
    # What an import system says about a package that is not there.
    monkeypatch.setitem(sys.modules, "flask", None)
    with pytest.raises(ConfigError, match=r"install the extra `aurora-core\[ui\]`"):
        mlflow_ui.command(tmp_path, port=5050)
