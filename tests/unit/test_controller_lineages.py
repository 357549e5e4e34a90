"""Whole runs with several lineages on the fake engine, with fake learners as real processes."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

import psutil
import pytest

from aurora_core import hookimpl
from aurora_core.check import check_run
from aurora_core.cli import main
from aurora_core.config import RunConfig
from aurora_core.controller import build
from aurora_core.controller.build_lineages import build_lineages
from aurora_core.controller.control_socket import Promote, give_command
from aurora_core.controller.run import run
from aurora_core.controller.run_directory import RunDirectory, read_lines
from aurora_core.errors import ConfigError
from aurora_core.explain import read_config
from aurora_core.plugins import Plugins
from aurora_core.records import NO_DRAFTER, Needs, Registration
from aurora_core.testing.fake_backend import FakeBackend
from aurora_core.testing.fake_speculator import FakePlugin, FakeSpeculator
from aurora_core.testing.mlflow_store import copy_empty_store
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.versions import read_run_state

FAKE_LEARNER = "aurora_core.testing.fake_learner"


class UntrainedSpeculator(FakeSpeculator):
    """Learns by observing alone, if at all."""

    trainable = False


class DeepSpeculator(FakeSpeculator):
    """Needs hidden states of another layer."""

    @property
    def needs(self) -> Needs:
        return dataclasses.replace(super().needs, aux_layers=(2,))


class OneKindBackend(FakeBackend):
    """Declares what engines declare that hold one kind of drafter."""

    @property
    def provides(self):
        return dataclasses.replace(super().provides, holds_lineages=False)


class MorePlugins:
    """Registers the above."""

    @hookimpl
    def aurora_register_speculators(self):
        yield Registration("untrained", f"{__name__}:UntrainedSpeculator")
        yield Registration("deep", f"{__name__}:DeepSpeculator")

    @hookimpl
    def aurora_register_backends(self):
        yield Registration("one_kind", f"{__name__}:OneKindBackend")


class Watcher:
    """Hears what happens in which lineage, and acts on a swap if a test wants."""

    def __init__(self, on_swap=None):
        self.swapped, self.published, self.learned = [], set(), set()
        self.on_swap = on_swap

    @hookimpl
    def aurora_draft_published(self, draft, lineage):
        self.published.add((lineage, draft.version))

    @hookimpl
    def aurora_learner_progress(self, step, lineage):
        self.learned.add(lineage)

    @hookimpl
    def aurora_draft_swapped(self, draft, lineage):
        self.swapped.append(lineage)
        if self.on_swap is not None:
            self.on_swap(lineage)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return make_tiny_target(tmp_path_factory.mktemp("target"), vocab_size=64, num_layers=2)


@pytest.fixture
def settings(target, tmp_path, monkeypatch):
    """Three lineages: what is left, one route, and one that needs no learner."""
    monkeypatch.setenv("AURORA_CACHE_DIR", str(tmp_path / "cache"))
    return {
        "target": str(target),
        "speculator": "fake",
        "lineages": {
            "second": {"speculator": "fake", "routes": ["math"]},
            "still": {"speculator": "untrained", "routes": ["code"]},
        },
        "backend": {"name": "fake", "wait_for_lineages": {15: ["", "second"]}},
        "swap_policy": "always",
        "guard": {"plain_share": 0},
        "learner": {"publish_every_s": 0.05, "max_steps": 2, "concurrent": 2},
        "traffic": {"domains": ["sql", "math", "code"], "max_tokens": 24, "lossless_every": 4},
        "tracking": {"enabled": False},
        "run_dir": str(tmp_path / "run"),
    }


def load_plugins(watcher=None):
    plugins = Plugins()
    for name, plugin in (("fake", FakePlugin()), ("more", MorePlugins()), ("watcher", watcher)):
        if plugin is not None:
            plugins.register(plugin, name)
    return plugins


def execute(settings, watcher=None, *, requests):
    config = RunConfig.model_validate(settings)
    return run(config, load_plugins(watcher), learner_module=FAKE_LEARNER, requests=requests)


def folder_of(settings, lineage=""):
    path = Path(settings["run_dir"])
    return path / "lineages" / lineage if lineage else path


def read_report(settings):
    return json.loads((folder_of(settings) / "report.json").read_text())


def champions(settings):
    return {
        name: read_run_state(folder_of(settings, name) / "state.json").champion
        for name in ("", "second", "still")
    }


def learners():
    children = psutil.Process().children(recursive=True)
    return [child for child in children if FAKE_LEARNER in " ".join(child.cmdline())]


def test_every_lineage_learns_swaps_and_is_reported_by_itself(settings, capsys):
    settings["final_bench"] = {"num_prompts": 2, "max_tokens": 24}
    watcher = Watcher()
    assert execute(settings, watcher, requests=45) == 0
    report = read_report(settings)
    assert report["requests"] | {"total": 45, "failed": 0} == report["requests"]
    assert report["lossless"]["checked"] > 5 and report["lossless"]["mismatches"] == 0
    by_route = {"sql": "", "math": "second", "code": "still"}
    requests = read_lines(folder_of(settings) / "requests.jsonl")
    traffic = [one for one in requests if one["route"]]  # the final measurement has none
    assert {(one["route"], one["lineage"]) for one in traffic} == set(by_route.items())
    lineages = report["lineages"]
    assert list(lineages) == ["default", "second", "still"]
    assert 45 < sum(one["requests"] for one in lineages.values()) < len(requests)
    speedups = {name: one["measured"][0]["speedup"] for name, one in lineages.items()}
    assert speedups["default"] == report["otps"]["speedup"] > speedups["still"]
    for name in ("default", "second"):
        assert lineages[name]["swaps"]["count"] >= 1
        assert lineages[name]["learner"]["steps"] >= 10
        assert lineages[name]["acceptance_length"]["mean"] > 1.1
        assert lineages[name]["otps"]["low"] < lineages[name]["otps"]["mean"]
    assert lineages["still"]["learner"]["state"] == "none"
    assert lineages["still"]["swaps"]["count"] == 0
    assert set(watcher.swapped) == watcher.learned == {"", "second"}
    assert not learners()
    output = capsys.readouterr().out
    assert "lineage second" in output and "second: published version 1" in output
    page = (folder_of(settings) / "report.html").read_text()
    assert "<h2>Lineages</h2>" in page and "<td>still</td>" in page


def test_the_folder_of_a_lineage_is_a_run_directory(settings, capsys):
    assert execute(settings, requests=45) == 0
    second = folder_of(settings, "second")
    assert read_config(second).run_dir == second
    capsys.readouterr()
    assert main(["versions", "--run-dir", str(folder_of(settings))]) == 0
    whole = capsys.readouterr().out
    assert main(["versions", "--run-dir", str(second), "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert "lineage default" in whole and "lineage second" in whole and "lineage still" in whole
    assert own["champion"] == champions(settings)["second"]
    kinds = {line["kind"] for line in read_lines(second / "verdicts.jsonl")}
    assert kinds >= {"verdict", "swap"}


def test_a_later_run_resumes_every_lineage(settings):
    assert execute(settings, requests=45) == 0
    first = champions(settings)
    num_before = len(read_lines(folder_of(settings) / "requests.jsonl"))
    settings["backend"] = {"name": "fake"}
    watcher = Watcher()
    assert execute(settings, watcher, requests=30) == 0
    lines = read_lines(folder_of(settings) / "requests.jsonl")[num_before:]
    requests = [one for one in lines if one["route"]]  # comparisons have none
    for lineage in ("", "second"):
        newest = RunDirectory(folder_of(settings, lineage)).store.next_version() - 1
        own = [one["max_draft_version"] for one in requests if one["lineage"] == lineage]
        # From the first request on, the version that was live, or one found waiting.
        assert set(own) - {NO_DRAFTER} <= {first[lineage], newest} and own[0] != NO_DRAFTER
    assert not watcher.published - {("", 2), ("second", 2)}


def test_a_person_commands_one_lineage_through_its_folder(settings):
    settings["learner"]["max_steps"] = 1
    settings["backend"] |= {"wait_for_swaps": {10: 2, 20: 3}}
    replies = []

    def promote():
        replies.append(give_command(folder_of(settings, "second"), Promote(version=1)))

    threads = [threading.Thread(target=promote)]

    def on_swap(lineage):
        if lineage == "second" and not threads[0].ident:
            threads[0].start()

    assert execute(settings, Watcher(on_swap), requests=40) == 0
    threads[0].join(10)
    assert replies[0].startswith("version 1 is live")
    pinned = {
        name: read_run_state(folder_of(settings, name) / "state.json").pinned
        for name in ("", "second")
    }
    assert pinned == {"": False, "second": True}


def test_learners_take_turns_where_only_one_may_train(settings):
    settings["learner"] |= {"concurrent": 1, "turn_s": 0.2}
    watcher = Watcher()
    assert execute(settings, watcher, requests=30) == 0
    assert watcher.learned == {"", "second"}


def test_lineages_have_registered_models_of_their_own(settings):
    mlflow = pytest.importorskip("mlflow")
    settings["tracking"]["enabled"] = True
    copy_empty_store(folder_of(settings))
    assert execute(settings, requests=45) == 0
    client = mlflow.MlflowClient(f"sqlite:///{settings['run_dir']}/mlflow.db")
    for lineage, name in (("", "aurora-drafter"), ("second", "aurora-second-drafter")):
        alias = client.get_registered_model(name).aliases["champion"]
        tags = client.get_model_version(name, alias).tags
        assert int(tags["draft_version"]) == champions(settings)[lineage]
    runs = client.search_runs([client.get_experiment_by_name("aurora").experiment_id])
    own = [one for one in runs if "mlflow.parentRunId" not in one.data.tags]  # not of a version
    assert sorted(one.data.tags.get("lineage", "") for one in own) == ["", "second", "still"]


def refused(settings, words):
    config, plugins = RunConfig.model_validate(settings), load_plugins()
    with pytest.raises(ConfigError, match=words):
        build_lineages(build.build_parts(config, plugins))


def test_an_engine_that_holds_one_kind_of_drafter_is_refused(settings):
    settings["backend"] = "one_kind"
    words = r"serves one kind of drafter at a time.*lineages \(second, still\)"
    refused(settings, words)
    with pytest.raises(ConfigError, match=words):
        check_run(RunConfig.model_validate(settings), load_plugins())


def test_lineages_that_share_a_place_for_their_traces_are_refused(settings, tmp_path):
    sink = {"name": "spool", "path": str(tmp_path / "one")}
    settings["lineages"]["second"]["trace_sink"] = sink
    settings["lineages"]["still"]["trace_sink"] = sink
    refused(settings, "lineages 'second' and 'still' would write their traces to the same place")


def test_lineages_that_need_other_layers_are_refused(settings):
    settings["lineages"]["second"]["speculator"] = "deep"
    refused(settings, "need hidden states of different layers")


def test_a_mistake_in_a_lineage_is_told_with_its_name(settings):
    settings["lineages"]["second"]["speculator"] = {"name": "fake", "depth": 3}
    refused(settings, "(?s)lineage 'second': .*speculator.depth: unknown option")


def test_check_shows_what_every_lineage_is_made_of(settings):
    shown = check_run(RunConfig.model_validate(settings), load_plugins())
    assert "lineage still: speculator untrained" in shown
