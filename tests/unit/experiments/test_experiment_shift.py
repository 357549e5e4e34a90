"""The whole experiment on a fake engine: what is run, what is not run again, what is written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aurora_core.cli import main
from aurora_core.errors import BackendError, ConfigError
from aurora_core.experiments.arms import ARMS
from aurora_core.experiments.results import read_result
from aurora_core.experiments.shift import Scale, ShiftExperiment, Wanted
from aurora_core.plugins import Plugins
from aurora_core.testing.fake_speculator import FakePlugin
from tests.unit.experiments.hand_made import make_config, write_versions

SCALE = Scale(
    domains=("sql", "math"),
    requests_per_domain=6,
    max_tokens=12,
    concurrency=2,
    pretrain_requests=4,
    window=4,
    reference_every=3,
)
EVERYTHING = Wanted(arms=tuple(ARMS), streams=("ordered",), seeds=(0,))
MIXED = Wanted(arms=("none", "gate"), streams=("mixed",), seeds=(0,))


@pytest.fixture
def plugins():
    plugins = Plugins()
    plugins.register(FakePlugin(), "fake")
    return plugins


@pytest.fixture
def experiment(tmp_path, plugins, serving):
    def make(scale=SCALE, **options):
        config = make_config(tmp_path / "unused", **options.pop("config", {}))
        return ShiftExperiment(
            tmp_path / "out", config, plugins, scale, note=lambda text: None, **options
        )

    return make


def test_every_arm_is_run_once_and_none_twice(experiment, serving, tmp_path):
    [ordered] = experiment().run(EVERYTHING)
    assert serving.served == ["none", "ngram", "pretrained", *list(ARMS)[2:]]
    assert ordered.missing == ()
    assert all(arm.num_requests == 12 and not arm.num_failed for arm in ordered.arms)
    # Answers of the fake engine depend on the prompt alone.
    compared = [arm.outputs for arm in ordered.arms if arm.arm != "none"]
    assert all(one.num_compared == 12 and not one.different for one in compared)
    serving.served.clear()
    assert experiment().run(EVERYTHING) == [ordered]
    assert serving.served == []
    assert experiment().run(MIXED)[0] == ordered
    assert serving.served == ["none", "gate"]
    out = tmp_path / "out"
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 4 and "online, from scratch" in page
    assert (out / "table.md").read_text().startswith("## Ordered stream")
    streams = json.loads((out / "summary.json").read_text())["streams"]
    assert [one["stream"] for one in streams] == ["ordered", "mixed"]


def test_static_drafter_is_better_than_none_in_the_figures(experiment):
    [ordered] = experiment().run(
        Wanted(arms=("none", "static"), streams=("ordered",), seeds=(0, 3))
    )
    none, static = ordered.arms
    assert none.whole.length.estimate == 1.0 and static.whole.length.estimate > 1.2
    assert static.seeds == (0, 3) and static.num_requests == 24
    assert none.reference_otps is not None and len(static.recoveries) == 2


def test_arm_that_was_interrupted_begins_anew_and_finished_ones_do_not(experiment, serving):
    serving.fail_on = "static"
    wanted = Wanted(arms=("none", "static"), streams=("ordered",), seeds=(0,))
    with pytest.raises(KeyboardInterrupt):
        experiment().run(wanted)
    serving.fail_on = None
    serving.served.clear()
    experiment().run(wanted)
    assert serving.served == ["static"]  # and no pretraining either


def test_arm_whose_server_is_gone_has_no_result_and_begins_anew(experiment, serving, tmp_path):
    serving.gone_on = "static"
    wanted = Wanted(arms=("none", "static"), streams=("ordered",), seeds=(0,))
    sentence = (
        r"status 137; arm 'static' of the ordered stream, seed 0, has no result, and the same "
        r"command begins it anew$"
    )
    with pytest.raises(BackendError, match=sentence):
        experiment().run(wanted)
    folder = tmp_path / "out" / "seed-0" / "ordered"
    assert [path.name for path in folder.glob("*.json")] == ["none.json"]
    assert "Not run: ngram, static" in (tmp_path / "out" / "table.md").read_text()
    serving.gone_on = None
    serving.served.clear()
    [ordered] = experiment().run(wanted)
    assert serving.served == ["static"]
    assert [arm.num_failed for arm in ordered.arms] == [0, 0]


def test_pretraining_whose_server_is_gone_is_not_done_either(experiment, serving, tmp_path):
    serving.gone_on = "pretrained"
    wanted = Wanted(arms=("static",), streams=("ordered",), seeds=(0,))
    with pytest.raises(BackendError, match="arm 'pretrained' of the ordered stream, seed 0"):
        experiment().run(wanted)
    serving.gone_on = None
    experiment().run(wanted)
    assert serving.served == ["pretrained", "pretrained", "static"]


@pytest.mark.parametrize(
    ("num_answers", "num_requests", "failures"), [(1, 10, 10), (0, 2, 4)], ids=["tail", "all"]
)
def test_arm_whose_server_lives_and_fails_without_end_has_no_result(
    experiment, serving, tmp_path, num_answers, num_requests, failures
):
    # References are answered all along: they are no part of the stream.
    serving.answers_before_failing = {"none": num_answers}
    scale = replace(SCALE, requests_per_domain=num_requests)
    with pytest.raises(BackendError, match=rf"the last {failures} requests failed.*arm 'none' of"):
        experiment(scale).run(Wanted(arms=("none",), streams=("ordered",), seeds=(0,)))
    assert not list((tmp_path / "out").rglob("none.json"))


def test_failures_short_of_the_patience_are_figures(experiment, serving):
    serving.answers_before_failing = {"none": 7}
    wanted = Wanted(arms=("none",), streams=("ordered",), seeds=(0,))
    [ordered] = experiment().run(wanted)
    [none] = ordered.arms
    assert 0 < none.num_failed < none.num_requests == 12


def test_figures_are_summed_up_after_every_arm(experiment, serving, tmp_path):
    serving.fail_on = "ngram"
    with pytest.raises(KeyboardInterrupt):
        experiment().run(EVERYTHING)
    assert "Not run: ngram, static" in (tmp_path / "out" / "table.md").read_text()


def test_run_that_was_trained_before_takes_the_place_of_pretraining(experiment, serving, tmp_path):
    write_versions(tmp_path / "quickstart", [4])
    wanted = Wanted(arms=("static",), streams=("ordered",), seeds=(0,))
    experiment(pretrained=tmp_path / "quickstart").run(wanted)
    assert serving.served == ["static"]
    result = read_result(tmp_path / "out" / "seed-0" / "ordered" / "static.json")
    assert {one.max_draft_version for one in result.requests} == {4}


def test_folder_with_other_settings_is_refused(experiment):
    experiment()
    experiment()
    larger = Scale(**{**{name: getattr(SCALE, name) for name in SCALE.__slots__}, "window": 9})
    with pytest.raises(ConfigError, match=r"other settings \(scale, scale.window\); give the same"):
        experiment(larger)
    with pytest.raises(ConfigError, match=r"other settings \(config\)"):
        experiment(config={"num_speculative_tokens": 4})


def test_settings_that_cannot_be_read_are_refused(experiment, tmp_path):
    experiment()
    (tmp_path / "out" / "settings.json").write_text("{")
    with pytest.raises(ConfigError, match=r"settings.json' cannot be read; use another folder"):
        experiment()


def test_what_does_not_exist_is_refused_before_anything_is_run(experiment, serving, tmp_path):
    with pytest.raises(ConfigError, match="there is no arm 'best'; there are none, ngram"):
        experiment().run(Wanted(arms=("best",), streams=("ordered",), seeds=(0,)))
    unknown = Scale(
        **{**{name: getattr(SCALE, name) for name in SCALE.__slots__}, "domains": ("cooking",)}
    )
    with pytest.raises(ConfigError, match="there is no prompt domain 'cooking'"):
        experiment(unknown)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="left no drafter live"):
        experiment(pretrained=tmp_path / "empty")
    assert serving.served == []


def test_results_that_cannot_be_written_are_one_sentence(plugins, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="the results cannot be written to"):
        ShiftExperiment(tmp_path / "file", make_config(tmp_path), plugins, SCALE)


def test_unknown_stream_is_one_sentence_and_status_2(capsys):
    assert main(["experiment", "shift", "--stream", "sideways"]) == 2
    assert "there is no stream 'sideways'; there are ordered, mixed" in capsys.readouterr().err
