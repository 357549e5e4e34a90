"""Poisoned versions in whole runs on the fake engine; their learner is a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json

import httpx
import pytest

from aurora_core.cli import main
from aurora_core.console import RunConsole
from aurora_core.controller import build
from aurora_core.controller.requests_log import RequestsLog
from aurora_core.controller.run import Run
from aurora_core.controller.run_directory import RunDirectory
from aurora_core.controller.swapping import Swapping
from aurora_core.errors import BackendError, ConfigError
from aurora_core.experiments import poison as poisoning
from aurora_core.experiments import poison_clients
from aurora_core.experiments.poison import PoisonExperiment
from aurora_core.experiments.poison_report import (
    Answer,
    PoisonCase,
    PoisonPlan,
    PoisonReport,
    Wanted,
    as_markdown,
    fate,
)
from aurora_core.experiments.poison_results import CaseFolder
from aurora_core.experiments.poisoned_weights import POISONS, Poison, claim, said_by
from aurora_core.experiments.untrained_run import PUBLISHER
from aurora_core.plugins import Plugins
from aurora_core.records import Holdout
from aurora_core.target.spec import read_target_spec
from aurora_core.testing.fake_speculator import FakePlugin
from aurora_core.versions import RunState, VersionStore, write_run_state
from tests.unit.experiments.hand_made import make_config
from tests.unit.test_controller_run import target as make_target

target = make_target

PLAN = PoisonPlan(
    concurrency=2, max_tokens=24, num_prompts=4, warm_up=16, unguarded=8, watch=24, most=1000
)


def holdout(accepts, champion_accepts=0.75):
    anchors = tuple(range(80, 96))
    rates = [
        tuple(tuple(int(count * rate**depth) for depth in (1, 2, 3)) for count in anchors)
        for rate in (accepts, champion_accepts)
    ]
    return Holdout(
        live_version=2, num_anchors=anchors, candidate_accepted=rates[0], live_accepted=rates[1]
    )


class InProcess:
    """`serve` without a process for the controller: the same run, in this event loop."""

    def __init__(self, plugins):
        self.plugins, self.commands = plugins, []

    @contextlib.asynccontextmanager
    async def __call__(self, config, *, command):
        self.commands.append(command)
        parts = build.build_parts(config, self.plugins)
        directory = RunDirectory(config.run_dir, retention=config.retention)
        with (
            directory.locked(),
            directory.logged(),
            RunConsole(io.StringIO(), live=False) as console,
        ):
            a_run = Run(parts, directory, console, learner_module=PUBLISHER)
            executed = asyncio.create_task(a_run.execute())
            url = f"http://127.0.0.1:{config.backend.options['port']}"
            async with httpx.AsyncClient(trust_env=False) as client:
                while not executed.done():
                    with contextlib.suppress(httpx.HTTPError):
                        if (await client.get(f"{url}/v1/models")).status_code == 200:
                            break
                    await asyncio.sleep(0.01)
            try:
                yield url
            finally:
                a_run._enough.set()
                assert await executed == 0


@pytest.fixture
def source(tmp_path, target, monkeypatch):
    """A run that left version 2 live."""
    monkeypatch.setenv("AURORA_CACHE_DIR", str(tmp_path / "cache"))
    run_dir = tmp_path / "source"
    VersionStore(run_dir / "versions").stage(
        2,
        lambda path: (path / "model.safetensors").write_bytes(b"good"),
        parent=None,
        speculator="fake",
        target_fingerprint=read_target_spec(target).fingerprint,
        global_step=2,
        num_tokens_trained=1,
    )
    write_run_state(run_dir / "state.json", RunState(champion=2))
    return run_dir


@pytest.fixture
def experiment(tmp_path, target, source, monkeypatch):
    plugins = Plugins()
    plugins.register(FakePlugin(), "fake")
    serving = InProcess(plugins)

    def prepare(config, plugins, *, names, folder, **options):
        found = []
        for name in names:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "model.safetensors").write_bytes(b"noise")
            honest = holdout(0.0)
            found.append(
                Poison(name=name, folder=folder / name, honest=honest, lying=claim(honest))
            )
        return found

    monkeypatch.setattr(poisoning, "serve", serving)
    monkeypatch.setattr(poisoning, "prepare_poisons", prepare)
    monkeypatch.setattr(poison_clients, "_POLL_S", 0.01)
    monkeypatch.setitem(Swapping.__init__.__kwdefaults__, "review_s", 0.02)
    monkeypatch.setitem(RequestsLog.__init__.__kwdefaults__, "poll_s", 0.02)

    def make(**backend):
        config = make_config(
            tmp_path / "unused",
            target=str(target),
            # Fast enough for a test, and slow enough that probation outlasts a few looks.
            backend={"name": "fake", "step_ms": 1.0, "max_answer_tokens": 24} | backend,
        )
        return PoisonExperiment(
            config, plugins, PLAN, source=source, folder=tmp_path / "out", note=lambda text: None
        )

    make.serving = serving
    return make


async def test_poisons_reach_a_real_controller_as_a_learner_publishes_and_none_stays(
    experiment, tmp_path
):
    wanted = Wanted(learners=("lying",), poisons=("noise",))
    report = await experiment().run(wanted)
    gate, canary, always = report.cases
    assert (gate.arm, canary.arm, always.arm) == ("gate", "canary", "always")
    assert [case.champion for case in report.cases] == [2, 2, 2]
    # The liar passes the gate and is rolled back; no liar passes the canary; `always` asks nobody.
    assert [action for action, _ in gate.decisions] == ["promote", "roll_back"]
    assert [action for action, _ in canary.decisions] == ["canary", "drop"]
    assert [action for action, _ in always.decisions] == ["promote", "roll_back"]
    assert [case.ever_live for case in report.cases] == [True, False, True]
    for case in (gate, always):
        assert case.replaced_by == 2 and case.num_until_back > 0
        assert case.evidence_requests >= 3
    assert canary.num_served > 0
    assert all(case.num_failed == case.num_different == 0 for case in report.cases)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["cases"]
    # Nothing is run twice.
    served = len(experiment.serving.commands)
    assert await experiment().run(wanted) == report
    assert len(experiment.serving.commands) == served == 4


async def test_honest_poison_is_never_live_and_answers_that_change_are_counted(experiment):
    wanted = Wanted(arms=("gate",), learners=("honest",), poisons=("noise", "zeros"))
    report = await experiment(lossy_versions=(2,)).run(wanted)
    assert [case.version for case in report.cases] == [3, 4]  # one server, one after the other
    for case in report.cases:
        assert not case.ever_live and case.champion == 2
        assert case.num_until_back is None
        assert "hold" in {action for action, _ in case.decisions}
        assert 0 < case.num_different <= case.num_requests


async def test_server_that_is_gone_ends_the_experiment_with_one_sentence():
    clients = poison_clients.Clients([], {}, max_tokens=4, concurrency=1)
    clients.answers += [Answer(finished=float(second), error="gone") for second in range(10)]
    with pytest.raises(BackendError, match="the last 10 requests failed, the last one with gone"):
        await clients.until(lambda num: False, most=100)
    clients.answers.append(Answer(finished=11.0))
    assert not await clients.until(lambda num: False, most=0)


async def test_nothing_has_settled_while_the_latest_request_failed():
    clients = poison_clients.Clients([], {}, max_tokens=4, concurrency=1)
    clients.answers += [Answer(finished=1.0), Answer(finished=2.0, error="gone")]
    assert not await clients.until(lambda num: True, most=0)
    clients.answers.append(Answer(finished=3.0))
    assert await clients.until(lambda num: True, most=0)


def case(**update):
    fields = {
        "arm": "gate", "learner": "lying", "poison": "noise", "version": 3,
        "acceptance_length": 1.0, "claimed_acceptance_length": 2.5,
        "decisions": (("promote", "it lies"),), "ever_live": True, "num_until_back": 12,
        "evidence_requests": 9, "replaced_by": 2, "num_served": 13, "champion": 2,
        "expected_champion": 2, "num_requests": 30, "num_failed": 0, "num_different": 0,
    }  # fmt: skip
    return PoisonCase(**(fields | update))


def line(kind, time, version, **more):
    return {"kind": kind, "time": time, "version": version} | more


def swap(time, version):
    return line("swap", time, version, receipt={"version": version})


def verdict(time, version, action, num_requests):
    return line(
        "verdict", time, version, verdict={"action": action, "reason": f"{action}!"},
        evidence={"since_swap": {"num_requests": num_requests}},
    )  # fmt: skip


LINES = [
    verdict(1.0, 3, "promote", 40), swap(1.1, 3), verdict(9.0, 3, "roll_back", 8), swap(9.1, 2),
    verdict(20.0, 4, "promote", 40), swap(20.1, 4),
]  # fmt: skip


def test_requests_are_counted_from_going_live_or_from_the_policy_on():
    answers = [Answer(finished=float(second), version=3) for second in range(12)]
    found = fate(3, LINES, answers)
    assert found["ever_live"] and found["num_until_back"] == 8  # 2, 3, ... 9
    assert (found["evidence_requests"], found["replaced_by"]) == (8, 2)
    assert found["decisions"] == (("promote", "promote!"), ("roll_back", "roll_back!"))
    assert fate(3, LINES, answers, policy_on=6.5)["num_until_back"] == 3


def test_version_that_stays_live_has_no_end():
    found = fate(4, LINES, [Answer(finished=21.0, version=4, same=False), Answer(finished=22.0)])
    assert found["ever_live"] and found["num_until_back"] is None
    assert (found["num_served"], found["num_different"]) == (1, 1)
    assert not fate(5, LINES, [])["ever_live"]


def test_table_says_which_poison_is_champion():
    report = PoisonReport(
        plan=PLAN,
        champion_acceptance_length=2.2,
        cases=(case(), case(version=4, champion=4, num_until_back=None)),
    )
    text = as_markdown(report)
    assert "| promote | yes | 12 | 9 | 13 | version 2 | 0 of 30 | 0 |" in text
    assert "| never |" in text and "**the poison** (version 4)" in text
    assert "Poisoned versions: 2; champion at the end: 1" in text
    assert "* gate, lying, noise: promote: it lies." in text


def test_liar_claims_more_than_the_champion_and_counts_stay_possible():
    honest = holdout(0.0)
    lie = claim(honest)
    pairs = zip(lie.num_anchors, lie.candidate_accepted, lie.live_accepted, strict=True)
    for anchors, claimed, live in pairs:
        assert anchors >= claimed[0] >= claimed[1] >= claimed[2]
        assert all(ours > theirs for ours, theirs in zip(claimed, live, strict=True))
    poison = Poison(name="noise", folder=None, honest=honest, lying=lie)
    assert said_by("honest", poison) is honest and said_by("lying", poison) is lie
    assert poison.acceptance_length == 1.0


def test_folder_of_other_sizes_or_with_a_broken_case_is_refused(tmp_path):
    folder = CaseFolder(tmp_path / "out", champion=2, plan=PLAN)
    folder.write(case())
    assert folder.has("gate", "lying", "noise") and folder.cases() == (case(),)
    with pytest.raises(ConfigError, match="holds results of another champion or other sizes"):
        CaseFolder(tmp_path / "out", champion=3, plan=PLAN)
    (tmp_path / "out" / "cases" / "gate-lying-noise.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read; delete it to have the case run again"):
        folder.cases()
    (tmp_path / "out" / "plan.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cannot be used: .*; name another folder with --out"):
        CaseFolder(tmp_path / "out", champion=2, plan=PLAN)


def test_champion_that_is_gone_before_anything_is_published_is_one_sentence(experiment, tmp_path):
    write_run_state(tmp_path / "run" / "state.json", RunState(champion=None, switched_off=True))
    with pytest.raises(BackendError, match="version 2 does not serve any more before anything"):
        experiment()._must_speculate(tmp_path / "run")


def test_unknown_names_are_refused(capsys):
    assert main(["experiment", "poison", "--kind", "arsenic"]) == 2
    assert f"there is no kind 'arsenic'; there are {', '.join(POISONS)}" in capsys.readouterr().err
