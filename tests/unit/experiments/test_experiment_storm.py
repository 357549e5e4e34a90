"""A storm on a fake engine, and what it is measured by."""

from __future__ import annotations

import pytest

from aurora_core.errors import BackendError, ConfigError
from aurora_core.experiments import storm as storming
from aurora_core.experiments.storm import lay_out_versions
from aurora_core.experiments.storm_report import StormPlan, as_markdown, gap_figures
from aurora_core.plugins import Plugins
from aurora_core.testing.fake_speculator import FakePlugin
from aurora_core.traffic.completion import RequestFailed
from aurora_core.versions import read_run_state
from tests.unit.experiments.hand_made import FakeServing, make_config, write_versions

PLAN = StormPlan(
    phase_s=0.2, num_storms=1, swap_every_s=0.05, concurrency=3, max_tokens=12, num_prompts=4
)


@pytest.fixture
def source(tmp_path):
    write_versions(tmp_path / "source", [1, 2, 5])
    return tmp_path / "source"


@pytest.fixture
def storm(tmp_path, source, monkeypatch):
    serving, self_made = FakeServing(), []
    monkeypatch.setattr(storming, "serve", serving)

    async def run(give=lambda run_dir, command: "done", **options):
        serving.options |= options

        def command(run_dir, command):
            self_made.append(command.version)
            return give(run_dir, command)

        monkeypatch.setattr(storming, "give_command", command)
        plugins = Plugins()
        plugins.register(FakePlugin(), "fake")
        report = await storming.storm(
            make_config(tmp_path / "unused"), plugins, PLAN, source=source,
            run_dir=tmp_path / "out" / "run", note=lambda text: None,
        )  # fmt: skip
        return report, self_made

    return run


async def test_versions_take_turns_and_answers_are_compared(storm):
    report, commands = await storm()
    assert commands == [5, 2, 5, 2]
    assert report.versions == (2, 5)
    # Every client asks at least once, however slow this machine is.
    assert report.num_requests >= PLAN.concurrency
    assert report.num_failed == report.num_different == 0
    assert report.acceptance_length > 1.0
    assert "0 failed, 0 answers different" in as_markdown(report)


async def test_answers_that_change_are_counted(storm):
    report, _ = await storm(lossy_versions=(2, 5))
    assert report.num_different == report.num_requests > 0


async def test_swap_that_fails_is_counted_and_ends_nothing(storm):
    def refuse(run_dir, command):
        raise BackendError("refused")

    report, commands = await storm(refuse)
    assert report.num_failed_swaps == len(commands) == 4
    assert report.num_failed == 0


async def test_prompt_that_fails_before_the_first_phase_is_one_sentence(storm, monkeypatch):
    async def fail(endpoint, prompt, settings):
        raise RequestFailed("timeout", "no answer")

    monkeypatch.setattr(storming.Endpoint, "complete", fail)
    with pytest.raises(BackendError, match="without speculation: timeout: no answer; its log lies"):
        await storm()


def test_gap_belongs_to_the_phase_in_which_it_ends():
    arrivals = [(0.0, 1.0, 3.0), (2.0,), (2.5, 2.6, 9.0)]
    found = gap_figures(arrivals, [(0.0, 2.0), (2.6, 3.5)])
    assert found.num_gaps == 3
    assert (found.p50_ms, found.max_ms) == (pytest.approx(1000.0), pytest.approx(2000.0))
    assert gap_figures(arrivals, [(20.0, 30.0)]).p99_ms is None


def test_two_newest_versions_are_laid_out_and_the_older_one_is_live(tmp_path, source):
    run_dir = tmp_path / "run"
    assert lay_out_versions(source, run_dir) == (5, 2)
    state = read_run_state(run_dir / "state.json")
    assert state.champion == 2 and state.pinned
    with pytest.raises(ConfigError, match="exists; name a new folder for the run that serves"):
        lay_out_versions(source, run_dir)


def test_one_version_makes_no_storm(tmp_path):
    write_versions(tmp_path / "source", [1])
    with pytest.raises(ConfigError, match="has 1 versions, and a storm needs two that take turns"):
        lay_out_versions(tmp_path / "source", tmp_path / "run")
