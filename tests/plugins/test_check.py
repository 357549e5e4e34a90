"""`aurora check` finds what can be known before anything is started, and downloads nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aurora_core.cli import main
from aurora_core.cli.measure import with_room
from aurora_core.config import RunConfig
from aurora_core.plugins import Plugins


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`aurora check` looks into the run directory, which is relative."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def bundled_plugins() -> None:
    plugins = Plugins()
    plugins.load()
    if missing := {"eagle", "torch"} - plugins.loaded.keys():
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from aurora_core.testing.tiny_target import make_tiny_target

    directory = tmp_path_factory.mktemp("target")
    make_tiny_target(directory)
    return directory


def test_a_runnable_configuration_is_printed_with_its_components(tiny, capsys):
    arguments = ["check", "--set", f"target={tiny}", "--set", "seed=3"]
    assert main([*arguments, "--set", "speculator.aux_layers=[0, 1, 2]"]) == 0
    text = capsys.readouterr().out
    assert "\nseed: 3\n" in text
    assert "# backend torch: aurora_backend_torch.backend:TorchBackend, plugin 'torch'" in text
    assert "# target layers 0, 1, 2" in text.replace("#  ", "# ")
    assert "missing" not in text


def test_secrets_are_not_printed(tiny, capsys):
    arguments = ["check", "--set", f"target={tiny}", "--set", "speculator.aux_layers=[0, 1, 2]"]
    assert main([*arguments, "--set", "tracking.uri=https://me:hunter2@mlflow.example"]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text and "  uri: https://***@mlflow.example" in text


def test_a_target_that_is_elsewhere_is_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AURORA_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("AURORA_SMOLLM2_WHEEL", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert main(["check"]) == 0
    assert "# target quickstart: not on this machine yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("backend.prot=1", "backend.prot: unknown option; did you mean 'port'?"),
        ("speculator.nonsense=1", "speculator.nonsense: unknown option; options: "),
        ("trace_sink.max_bytes=0", "trace_sink.max_bytes: input should be greater than 0, not 0"),
        ("swap_policy=gait", "no plugin provides 'gait' under swap_policies; available: always, "),
        ("target=./none", "target './none' is not a directory"),
        ("traffic.domains=[klingon]", "there is no prompt domain 'klingon'; the generator has"),
        ("traffic.prompts=none.jsonl", "the prompts file 'none.jsonl' cannot be read: No such"),
        ("final_bench.batch_sizes=[99]", "but there are 24 held-out prompts; raise final_bench."),
        ("run_dir=/dev/null", "run directory '/dev/null' is not writable: Not a directory; set an"),
        ("run_dir=/dev/null/run", "run directory '/dev/null/run' is not writable: Not a direct"),
        ("run_dir=loop", "loop' is not writable: Too many levels of symbolic links; set another"),
        ("trace_sink.path=loop", "loop' cannot be written: Too many levels of symbolic links; se"),
        ("trace_sink.path=/dev/null", "the trace spool '/dev/null' cannot be written: Not a dire"),
        ("target=loop", "target 'loop' is not a directory; give a model directory"),
        ("target=~nobody/model", "target '~nobody/model' is not a directory; give a model direct"),
        (f"target={'x' * 300}", "is neither a directory nor a hub id (owner/name)"),
        ("plugins=[]", "under speculators; available: none; installed, but not among those to l"),
        ("backend.device=gpu", "backend.device: there is no device 'gpu'; choose `auto`, `cpu`,"),
        ("backend.host=192.0.2.1", "cannot listen on 192.0.2.1:0 (cannot assign requested addre"),
        ("tracking.uri=ftp://x", "tracking.uri: MLflow has no store for the scheme 'ftp'; it kn"),
        ("learner.precision='8-true'", "Lightning cannot train with learner.accelerator 'auto',"),
    ],
)
def test_what_would_keep_a_run_from_starting_is_one_sentence(tiny, capsys, assignment, message):
    Path("loop").symlink_to("loop")
    assert main(["check", "--set", f"target={tiny}", "--set", assignment]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def test_learners_of_lineages_are_checked_and_those_of_what_is_not_trained_are_not(
    tiny, capsys, monkeypatch
):
    from aurora_core.learner import trainer_check

    asked = []
    monkeypatch.setattr(trainer_check, "check_trainer", asked.append)
    arguments = ["check", "--set", f"target={tiny}", "--set", "speculator={name: ngram}"]
    other = "lineages={one: {tenants: [a], speculator: {name: medusa}, learner: {devices: 2}}}"
    assert main([*arguments, "--set", other]) == 0
    assert [one.devices for one in asked] == [2]


def test_a_policy_that_the_backend_cannot_serve_keeps_a_run_from_starting(
    tiny, capsys, monkeypatch
):
    from aurora_core.controller import build

    monkeypatch.setattr(build, "can_route", lambda backend: False)
    arguments = ["check", "--set", f"target={tiny}", "--set", "speculator.aux_layers=[0, 1, 2]"]
    assert main([*arguments, "--set", "swap_policy=canary"]) == 2
    assert "swap policy 'canary' sends a share of the requests" in capsys.readouterr().err


def test_a_directory_that_was_learned_for_other_options_is_refused_and_nothing_is_written(
    tiny, capsys, tmp_path
):
    from aurora_core.learner.lineage import Lineage
    from aurora_core.target.spec import read_target_spec

    identity = {
        "target_fingerprint": read_target_spec(tiny, name="tiny").fingerprint,
        "speculator": "ngram",
        "speculator_options": {},
    }
    lineage = Lineage(tmp_path / "runs/quickstart/learner/lineage", identity)
    lineage.folder.mkdir(parents=True)
    text = json.dumps({"identity": lineage.identity, "parent": None})
    (lineage.folder / "lineage.json").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    arguments = ["check", "--set", f"target={tiny}", "--set", "speculator.aux_layers=[0, 1, 2]"]
    assert main(arguments) == 2
    assert "was learned for another speculator ('ngram', now 'eagle3')" in capsys.readouterr().err
    # What is not trained has no learner, which could object.
    assert main(["check", "--set", f"target={tiny}", "--set", "speculator={name: ngram}"]) == 0
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"max_running_requests": 32}),
        (["backend.max_running_requests=2"], {"max_running_requests": 2}),
    ],
)
def test_a_benchmark_has_room_for_its_largest_batch(overrides, expected):
    plugins = Plugins()
    plugins.load()
    settings = with_room(RunConfig.quickstart(overrides), plugins, 32)
    assert settings.backend.options == expected


def test_a_small_benchmark_changes_nothing():
    plugins = Plugins()
    plugins.load()
    quickstart = RunConfig.quickstart()
    assert with_room(quickstart, plugins, 1) == quickstart
