"""`aurora compare` and `aurora export`: figures side by side, files taken elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from aurora_core.cli import main
from aurora_core.comparison import as_text, figures
from aurora_core.config import RunConfig
from aurora_core.errors import CheckpointError, ConfigError
from aurora_core.exporting import export_version
from aurora_core.learner.holdout import Score
from aurora_core.plugins import Plugins
from aurora_core.testing.fake_speculator import FakePlugin, FakeSpeculator
from aurora_core.versions import VersionStore


def scores(*accepted: int, routes: tuple[str, ...] = ()) -> dict[str, Score]:
    routes = routes or ("",) * len(accepted)
    return {
        f"t{index}": Score(100, (count, count // 2), "", route)
        for index, (count, route) in enumerate(zip(accepted, routes, strict=True))
    }


def test_each_version_has_its_acceptance_by_position_and_its_gain_over_the_first():
    found = figures({3: scores(40, 50, 60, 50), 7: scores(60, 70, 80, 72)}, confidence=0.9)
    first, second = found.versions
    assert (found.num_traces, found.num_anchors) == (4, 400)
    assert first.gain is None and first.acceptance_length == pytest.approx(1.75)
    assert first.positions[0].estimate == pytest.approx(0.5)
    assert second.gain.estimate == pytest.approx((20 * 3 + 22 + 41) / 400)
    assert 0.25 < second.gain.lower <= second.gain.estimate <= second.gain.upper < 0.4


def test_only_traces_that_all_versions_were_scored_on_count():
    other = scores(40, 50, 60)
    del other["t1"]
    assert figures({1: scores(40, 50, 60), 2: other}, confidence=0.9).num_traces == 2


def test_versions_that_no_trace_can_compare_are_one_sentence():
    with pytest.raises(ConfigError, match="none of the held-out traces can be replayed"):
        figures({1: {}, 2: scores(40)}, confidence=0.9)


def test_text_has_a_line_for_each_version_and_each_label():
    routes = ("sql", "math", "sql", "math")
    found = figures(
        {1: scores(40, 50, 60, 50, routes=routes), 2: scores(60, 70, 80, 72, routes=routes)},
        confidence=0.9,
    )
    lines = as_text(found).splitlines()
    assert lines[0] == "4 held-out traces, 400 positions; bounds with 90% confidence"
    assert lines[1].split() == ["version", "length", "gain", "position", "1", "position", "2"]
    assert lines[2].split()[:2] == ["1", "1.75"] and lines[3].split()[:2] == ["2", "2.06"]
    assert "+0.31 (+0.30 to +0.32)" in lines[3]
    assert lines[5].split() == ["length", "at", "version", "1", "version", "2"]
    assert lines[6].split() == ["math", "1.75", "2.06"] and lines[7].split()[0] == "sql"


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    def write(path: Path) -> None:
        (path / "model.safetensors").write_bytes(b"weights")
        (path / "config.json").write_text("{}")

    store = VersionStore(tmp_path / "versions")
    store.stage(
        1, write, parent=None, speculator="fake", target_fingerprint="f", global_step=1,
        num_tokens_trained=1, objective="kl", data_window=(10.0, 20.0),
    )  # fmt: skip
    return store


def test_version_keeps_its_objective_and_the_span_of_its_data(store):
    draft = store.read(1)
    assert (draft.objective, draft.data_window) == ("kl", (10.0, 20.0))


def test_export_copies_the_checkpoint_and_nothing_of_ours(store, tmp_path):
    folder = tmp_path / "out" / "deeper"
    formats = ("module", "eagle3")
    assert export_version(store, 1, folder, formats=formats, wanted=None) == "eagle3"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_export_lets_the_speculator_convert_what_is_only_in_another_layout(store, tmp_path):
    def convert(checkpoint: Path, folder: Path) -> None:
        (folder / "made.txt").write_text((checkpoint / "config.json").read_text())

    folder = tmp_path / "out"
    formats, converters = ("module", "eagle3"), {"speculators": convert, "another": convert}
    found = export_version(
        store, 1, folder, formats=formats, wanted="speculators", converters=converters
    )
    assert found == "speculators"
    assert [path.name for path in folder.iterdir()] == ["made.txt"]
    with pytest.raises(ConfigError, match="there is eagle3, module, another, speculators"):
        export_version(
            store, 1, tmp_path / "new", formats=formats, wanted="gguf", converters=converters
        )
    plain = export_version(
        store, 1, tmp_path / "plain", formats=formats, wanted=None, converters=converters
    )
    assert plain == "eagle3", "what is only copied comes first"


@pytest.mark.parametrize("target", ["owner/model", "quickstart"])
def test_export_prints_how_another_engine_serves_it(store, tmp_path, capsys, monkeypatch, target):
    def command(folder, *, layout, target, num_speculative_tokens):
        return ("serve", target, f"{folder.name} {layout} {num_speculative_tokens}")

    plugins = Plugins()
    plugins.register(FakePlugin(), "fake")
    monkeypatch.setattr("aurora_core.cli.comparing.load_plugins", lambda _: plugins)
    monkeypatch.setattr(FakeSpeculator, "serving_command", command)
    monkeypatch.setattr("aurora_core.target.pull.pull_quickstart", lambda *_, **__: Path("/kept"))
    values = {"target": target, "speculator": "fake", "backend": "fake", "plugins": ()}
    config = RunConfig.model_validate(values | {"num_speculative_tokens": 3})
    document = {"config": config.model_dump(mode="json"), "resolved": {}}
    (tmp_path / "resolved.yaml").write_text(yaml.safe_dump(document))
    assert main(["export", "1", str(tmp_path / "out"), "--run-dir", str(tmp_path)]) == 0
    place = "/kept" if target == "quickstart" else target
    assert capsys.readouterr().out.splitlines()[1:] == [
        "an engine without Aurora serves it by:",
        f"  serve {place} 'out module 3'",
    ]


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"wanted": "gguf"}, ConfigError, "no format 'gguf'; there is eagle3, module"),
        ({"version": 4}, CheckpointError, r"version 4 is not in .*; it holds 1"),
        ({"folder": "full"}, ConfigError, r"full' is not empty"),
        ({"folder": "file"}, ConfigError, r"cannot be copied to .*file': File exists"),
    ],
)
def test_what_cannot_be_exported_is_said(store, tmp_path, change, error, sentence):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    (tmp_path / "file").touch()
    with pytest.raises(error, match=sentence):
        export_version(
            store,
            change.get("version", 1),
            tmp_path / change.get("folder", "new"),
            formats=("module", "eagle3"),
            wanted=change.get("wanted"),
        )


def test_what_safetensors_says_of_a_disk_is_one_sentence(store, tmp_path):
    def convert(checkpoint: Path, folder: Path) -> None:
        save_file({"weight": np.ones(4)}, folder / "gone" / "model.safetensors")  # no OSError

    with pytest.raises(ConfigError, match=r"cannot be copied to .*new': .*No such file or dir"):
        export_version(
            store, 1, tmp_path / "new", formats=(), wanted="other", converters={"other": convert}
        )


def test_damaged_version_is_not_exported(store, tmp_path):
    (store.directory(1) / "model.safetensors").write_bytes(b"other")
    with pytest.raises(CheckpointError, match="damaged"):
        export_version(store, 1, tmp_path / "new", formats=("module",), wanted=None)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "1"], "give two versions or more to compare"),
        (["compare", "1", "1"], "give two versions or more to compare"),
        (["compare", "1", "2"], "version 2 is not in"),
        (["promote"], "give either a version to promote, or --auto"),
        (["promote", "1", "--auto"], "give either a version to promote, or --auto"),
        (["rollback", "1", "--off"], "give either a version to roll back to, or --off"),
        (["rollback"], "no run is using"),
    ],
)
def test_commands_that_make_no_sense_are_refused_in_a_sentence(
    store, tmp_path, capsys, arguments, sentence
):
    config = RunConfig.model_validate({"speculator": "fake", "backend": "fake", "plugins": ()})
    document = {"config": config.model_dump(mode="json"), "resolved": {}}
    (tmp_path / "resolved.yaml").write_text(yaml.safe_dump(document))
    assert main([*arguments, "--run-dir", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
