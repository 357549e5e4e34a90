"""What happens when SGLang calls the plugin, as far as it needs no SGLang."""

from __future__ import annotations

from pathlib import Path

import pytest

from aurora_backend_sglang.engine.plugin import activate, installed_among, open_writer
from aurora_backend_sglang.engine.settings import (
    SETTINGS_VARIABLE,
    find_settings,
    write_settings,
)
from aurora_core.errors import BackendError
from plugins.backend_sglang.tests.engine_records import engine_settings


def test_a_server_of_its_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTINGS_VARIABLE, raising=False)
    activate()  # would import SGLang, which is not here


def test_settings_arrive_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settings.json"
    write_settings(engine_settings(initial_version=3), path)
    monkeypatch.setenv(SETTINGS_VARIABLE, str(path))
    assert find_settings() == engine_settings(initial_version=3)


@pytest.mark.parametrize(
    ("content", "sentence"), [(None, "cannot read"), ("{}", "not from this version of Aurora")]
)
def test_settings_that_do_not_fit_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, sentence: str
) -> None:
    path = tmp_path / "settings.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(SETTINGS_VARIABLE, str(path))
    with pytest.raises(BackendError, match=sentence):
        find_settings()


def test_only_plugins_that_are_beside_the_engine_are_loaded() -> None:
    assert installed_among(None) is None
    assert installed_among(("nowhere-to-be-found",)) == ()


def test_the_sink_of_the_run_is_opened(tmp_path: Path) -> None:
    settings = engine_settings(
        plugins=("nowhere-to-be-found",), sink_options={"path": str(tmp_path / "spool")}
    )
    writer = open_writer(settings)
    assert writer is not None
    writer.close()
    assert (tmp_path / "spool" / "traces").is_dir()


def test_nothing_is_opened_without_a_sink() -> None:
    assert open_writer(engine_settings(sink=None)) is None
