"""`aurora sglang-command` prints what starts a server that a run can attach to."""

from __future__ import annotations

import shlex
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from aurora_backend_sglang import start_files
from aurora_backend_sglang.engine.settings import SETTINGS_VARIABLE, TOKEN_VARIABLE, find_settings
from aurora_core.cli import main
from aurora_core.interfaces import ServePlan
from aurora_core.records import NO_DRAFTER
from aurora_core.testing.tiny_target import make_tiny_target
from plugins.backend_sglang.tests.engine_records import drafter_tensors, write_checkpoint


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    values = {
        "target": str(make_tiny_target(tmp_path / "target", num_layers=5)),
        "speculator": {"name": "eagle3", "aux_layers": [1, 2, 3]},
        "backend": {"name": "sglang", "device": "cpu", "arguments": ["--log-level", "warning"]},
        "num_speculative_tokens": 4,
        "run_dir": str(tmp_path / "run"),
    }
    path.write_text(yaml.safe_dump(values))
    return path


def test_the_printed_command_starts_a_server_of_the_run(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def make(plan: ServePlan, folder: Path) -> Path:
        write_checkpoint(folder, drafter_tensors())
        return folder

    monkeypatch.setattr(start_files, "make_placeholder", make)
    assert main(["sglang-command", str(config), "--port", "8123"]) == 0
    program, *words = shlex.split(capsys.readouterr().out)
    assert program == "env"
    variables = dict(word.split("=", 1) for word in takewhile(lambda one: "=" in one, words))
    command = words[len(variables) :]
    assert command[1:3] == ["-m", "sglang.launch_server"]
    assert command[-2:] == ["--log-level", "warning"]
    assert command[command.index("--port") + 1] == "8123"
    drafter = tmp_path / "run" / "engine" / "drafter"
    assert command[command.index("--speculative-draft-model-path") + 1] == str(drafter)
    assert (drafter / "depths.json").is_file()
    assert variables[TOKEN_VARIABLE] == "CHOOSE-ONE"
    monkeypatch.setenv(SETTINGS_VARIABLE, variables[SETTINGS_VARIABLE])
    settings = find_settings()
    assert settings is not None
    assert settings.versions_dir == str(tmp_path / "run" / "versions")
    assert (settings.num_speculative_tokens, settings.initial_version) == (4, NO_DRAFTER)


def test_another_backend_has_no_such_command(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(values | {"backend": "torch"}))
    assert main(["sglang-command", str(config)]) == 2
    assert "is not `sglang`; there is no command" in capsys.readouterr().err
