"""Whole runs on the fake engine, with the fake learner as a real process."""

import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import numpy as np
import psutil
import pytest
import yaml
from safetensors.numpy import save_file

from aurora_core import hookimpl
from aurora_core.cli import main
from aurora_core.config import RunConfig
from aurora_core.console import RunConsole
from aurora_core.controller import build, run_directory, traffic
from aurora_core.controller.run import Run, run
from aurora_core.controller.run_directory import RunDirectory, read_lines
from aurora_core.controller.serve_only import serve_only
from aurora_core.controller.swapping import read_evidence
from aurora_core.errors import AuroraError, BackendError, ConfigError, TraceError
from aurora_core.plugins import Plugins
from aurora_core.policies import HoldoutGate, HoldoutOptions
from aurora_core.records import NO_DRAFTER
from aurora_core.target.architecture import parse_architecture
from aurora_core.testing.fake_backend import FakeBackend
from aurora_core.testing.fake_speculator import FakePlugin
from aurora_core.testing.mlflow_store import copy_empty_store
from aurora_core.traffic.completion import RequestFailed
from aurora_core.traffic.endpoint import Endpoint, RequestSettings
from aurora_core.traffic.prompts.prompt import Prompt
from aurora_core.versions import read_run_state

FAKE_LEARNER = "aurora_core.testing.fake_learner"

REPORT_KEYS = {
    "requests": {"total", "failed"},
    "lossless": {"checked", "mismatches", "near_ties"},
    "swaps": {"count", "stall_ms_p99"},
    "acceptance_length": {"first", "last"},
    "otps": {"none", "speculative", "speedup"},
    "traces": {"kept", "shed"},
    "learner": {"steps", "tokens_trained"},
    "memory": {"engine_mib", "learner_mib"},
    "versions": {"plugins", "packages"},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A target of which only the facts are right; nothing here loads its weights."""
    directory = tmp_path_factory.mktemp("target")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 8,
        "hidden_size": 4,
        "intermediate_size": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    shapes = parse_architecture(config, directory).tensor_shapes()
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture
def settings(target, tmp_path, monkeypatch):
    """A configuration as plain data, to be changed by a test."""
    monkeypatch.setenv("AURORA_CACHE_DIR", str(tmp_path / "cache"))
    return {
        "target": str(target),
        "speculator": "fake",
        # The traffic waits for three swaps, however slow this machine is.
        "backend": {"name": "fake", "wait_for_swaps": {10: 1, 20: 2, 30: 3}},
        "swap_policy": "always",
        "learner": {"publish_every_s": 0.05},
        "traffic": {"domains": ["sql", "math"], "max_tokens": 24, "lossless_every": 4},
        "tracking": {"enabled": False},
        "run_dir": str(tmp_path / "run"),
    }


class Watcher:
    """Ends the traffic once enough was seen, and lets a test act on what happens."""

    def __init__(self, on_swap=None, on_started=None):
        self.hooks, self.swaps = [], []
        self.on_swap, self.on_started = on_swap, on_started
        self.report = self.error = None

    @hookimpl
    def aurora_run_started(self, config, run_dir):
        self.hooks.append("started")
        if self.on_started:
            self.on_started()

    @hookimpl
    def aurora_draft_swapped(self, draft, previous, receipt):
        self.hooks.append("swapped")
        self.swaps.append(receipt.version)
        if self.on_swap:
            self.on_swap(receipt.version)

    @hookimpl
    def aurora_run_finished(self, report, error):
        self.hooks.append("finished")
        self.report, self.error = report, error


def load_plugins(watcher=None):
    plugins = Plugins()
    plugins.register(FakePlugin(), "fake")
    if watcher is not None:
        plugins.register(watcher, "watcher")
    return plugins


def execute(settings, watcher=None, **options):
    config = RunConfig.model_validate(settings)
    plugins = load_plugins(watcher)
    return run(config, plugins, learner_module=FAKE_LEARNER, **options)


def read_report(settings):
    return json.loads((Path(settings["run_dir"]) / "report.json").read_text())


def registry_aliases(settings):
    """Return alias -> draft version, from the run's own MLflow store."""
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{settings['run_dir']}/mlflow.db")
    model = client.get_registered_model("aurora-drafter")
    return {
        alias: int(client.get_model_version(model.name, number).tags["draft_version"])
        for alias, number in model.aliases.items()
    }


def learners():
    children = psutil.Process().children(recursive=True)
    return [child for child in children if FAKE_LEARNER in " ".join(child.cmdline())]


def test_run_serves_learns_swaps_measures_and_reports(settings, tmp_path, capsys):
    settings["final_bench"] = {"num_prompts": 4, "max_tokens": 24}
    watcher = Watcher()
    assert execute(settings, watcher, requests=50, report_dir=tmp_path / "reports") == 0
    report = read_report(settings)
    for section, keys in REPORT_KEYS.items():
        assert keys <= report[section].keys(), section
    assert {"wall_s", "seed"} <= report.keys()
    assert report["ended"] == "finished"
    assert report["requests"] | {"total": 50, "failed": 0} == report["requests"]
    assert report["swaps"]["count"] == len(watcher.swaps) >= 3
    assert report["lossless"]["checked"] >= 16 and report["lossless"]["mismatches"] == 0
    assert len(report["lossless"]["by_version"]) >= 3  # before, between and after the swaps
    assert 1.0 <= report["acceptance_length"]["first"] < report["acceptance_length"]["last"]
    assert report["acceptance_length"]["last_measured_on"] == "held-out prompts"
    assert report["otps"]["speedup"] > 1.3
    assert report["learner"]["steps"] >= 30 and report["learner"]["tokens_trained"] >= 3000
    assert watcher.hooks[0] == "started" and watcher.hooks[-1] == "finished"
    assert watcher.report == report and watcher.error is None
    for name in ("report.json", "report.html"):
        copied = (tmp_path / "reports" / name).read_text()
        assert copied == (Path(settings["run_dir"]) / name).read_text()
    output = capsys.readouterr().out
    assert "50 finished, 0 failed" in output and "\x1b" not in output
    assert re.search(r"by draft position +0\.\d\d 0\.\d\d", output)
    assert re.search(r"output tokens/s +[\d.]+ \([\d.]+ to [\d.]+\) against [\d.]+ \(", output)
    assert report["swaps"]["longest_gap_ms_p99"] is not None
    assert not learners()


def test_files_of_a_run_tell_what_happened(settings):
    settings["tracking"]["enabled"] = True
    copy_empty_store(Path(settings["run_dir"]))
    assert execute(settings, requests=40) == 0
    directory = RunDirectory(Path(settings["run_dir"]))
    state = read_run_state(directory.state)
    assert directory.store.read(state.champion).version == state.champion
    assert state.previous < state.champion
    aliases = registry_aliases(settings)
    assert (aliases["champion"], aliases["previous"]) == (state.champion, state.previous)
    requests = read_lines(directory.requests)
    assert len(requests) == read_report(settings)["requests"]["engine_finished"] >= 40
    assert {request["route"] for request in requests} >= {"sql", "math"}
    resolved = yaml.safe_load((directory.path / "resolved.yaml").read_text())
    assert resolved["config"]["seed"] == 0
    assert "FakeBackend" in resolved["resolved"]["backend"]
    assert not list(directory.path.rglob("*.partial*"))


def test_verdicts_of_a_run_can_be_replayed_through_the_policy(settings):
    settings["swap_policy"] = "gate"
    settings["backend"]["wait_for_swaps"] = {5: 1}
    assert execute(settings, requests=10) == 0
    lines = read_lines(Path(settings["run_dir"]) / "verdicts.jsonl")
    verdicts = [read_evidence(line) for line in lines if line["kind"] == "verdict"]
    assert "promote" in {verdict.action for _, verdict in verdicts}
    policy = HoldoutGate(HoldoutOptions())
    assert all(policy.decide(evidence) == verdict for evidence, verdict in verdicts)


def test_killed_learner_restarts_while_serving_goes_on(settings):
    killed = []

    def kill_once(version):
        if not killed:
            [learner] = learners()
            killed.append(version)
            learner.send_signal(signal.SIGKILL)

    watcher = Watcher(on_swap=kill_once)
    assert execute(settings, watcher, requests=40) == 0
    report = read_report(settings)
    assert report["learner"]["restarts"] == 1
    assert report["requests"] | {"total": 40, "failed": 0} == report["requests"]
    assert watcher.swaps == sorted(watcher.swaps) and len(watcher.swaps) >= 3
    numbers = [draft.version for draft in RunDirectory(Path(settings["run_dir"])).store.list()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert not learners()


def test_failed_swap_keeps_the_old_drafter_and_is_reported(settings, capsys):
    settings["backend"]["fail_swap_attempts"] = [2]
    watcher = Watcher()
    assert execute(settings, watcher, requests=40) == 0
    assert read_report(settings)["swaps"]["failed"] == 1
    lines = read_lines(Path(settings["run_dir"]) / "verdicts.jsonl")
    [failed] = [line for line in lines if line["kind"] == "swap_failed"]
    assert failed["version"] not in watcher.swaps
    assert failed["evidence"]["live"]["version"] == watcher.swaps[0]
    assert f"version {watcher.swaps[0]} goes on serving" in capsys.readouterr().out


def test_drafter_that_fails_is_not_live_any_more_anywhere(settings, capsys):
    settings["backend"] |= {"wait_for_swaps": {10: 1}, "drop_drafter_after_requests": 20}
    settings["learner"]["max_steps"] = 1  # one version, and no other
    settings["tracking"]["enabled"] = True
    copy_empty_store(Path(settings["run_dir"]))
    watcher = Watcher()
    assert execute(settings, watcher, requests=30) == 0
    assert watcher.swaps == [1, NO_DRAFTER]
    directory = RunDirectory(Path(settings["run_dir"]))
    assert read_run_state(directory.state).champion is None
    assert read_lines(directory.verdicts)[-1]["kind"] == "engine_changed"
    assert registry_aliases(settings) == {}
    report = read_report(settings)
    assert report["drafter"]["live_version"] is None
    assert (report["swaps"]["count"], report["swaps"]["by_engine"]) == (1, 1)
    assert "the engine let go of version 1" in capsys.readouterr().out


def test_full_disk_costs_records_and_not_the_service(settings, monkeypatch, capsys):
    directory = RunDirectory(Path(settings["run_dir"]))
    failures = []

    def fill_disk():
        for record in (directory.requests, directory.verdicts):
            record.symlink_to("/dev/full")

    def write_state(path, state):
        failures.append(state)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_directory, "write_run_state", write_state)
    watcher = Watcher(on_started=fill_disk)
    assert execute(settings, watcher, requests=40) == 0
    assert len(watcher.swaps) >= 3 and failures[-1].champion == watcher.swaps[-1]
    report = read_report(settings)
    assert report["requests"]["finished"] == 40
    assert report["records"]["dropped"] >= report["requests"]["engine_finished"] + 6
    output = capsys.readouterr().out
    for name in ("requests.jsonl", "verdicts.jsonl", "state.json"):
        assert output.count(f"{name} cannot be written: No space left on device") == 1
    for record in (directory.requests, directory.verdicts):
        record.unlink()  # reading this device never ends


def test_report_that_cannot_be_written_is_one_sentence(settings, tmp_path, capsys):
    run_dir = Path(settings["run_dir"])
    (run_dir / "report.json").mkdir(parents=True)
    watcher = Watcher()
    assert execute(settings, watcher, requests=5, report_dir=tmp_path / "reports") == 1
    captured = capsys.readouterr()
    assert re.fullmatch(r"aurora: the report cannot be written to '.*run': .*\n", captured.err)
    assert "5 finished, 0 failed" in captured.out
    assert watcher.report["requests"]["finished"] == 5 and watcher.error is None
    copied = json.loads((tmp_path / "reports" / "report.json").read_text())
    assert copied == watcher.report  # another disk may have room


def test_sink_that_cannot_be_written_is_refused_before_anything_starts(settings, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    settings["trace_sink"] = {"name": "spool", "path": str(tmp_path / "file" / "spool")}
    with pytest.raises(TraceError, match=r"the trace spool .* cannot be written: Not a directory"):
        execute(settings, Watcher(), requests=5)
    assert "starting the engine" not in capsys.readouterr().out
    assert not (Path(settings["run_dir"]) / "resolved.yaml").exists()


def test_failed_requests_are_no_finished_ones(settings, monkeypatch, capsys):
    monkeypatch.setattr(traffic, "_PAUSE_AFTER_FAILURE_S", 0.0)
    complete = Endpoint.complete

    async def fail_sometimes(self, prompt, asked):
        if asked.drafter is None and next(number) % 4 == 0:
            raise RequestFailed("timeout", "no answer")
        return await complete(self, prompt, asked)

    number = itertools.count(1)
    monkeypatch.setattr(Endpoint, "complete", fail_sometimes)
    settings["backend"]["wait_for_swaps"] = {}
    assert execute(settings, requests=12) == 0
    requests = read_report(settings)["requests"]
    expected = {"total": 12, "finished": 9, "failed": 3, "unfinished": 0}
    assert requests | expected == requests
    assert "9 finished, 3 failed" in capsys.readouterr().out


def test_run_whose_requests_all_fail_says_so_and_is_no_success(settings, monkeypatch, capsys):
    async def fail(self, prompt, asked):
        raise RequestFailed("status 400", "the prompt is too long")

    monkeypatch.setattr(traffic, "_PAUSE_AFTER_FAILURE_S", 0.0)
    monkeypatch.setattr(Endpoint, "complete", fail)
    settings["backend"]["wait_for_swaps"] = {}
    assert execute(settings, requests=5) == 1
    report = read_report(settings)
    assert report["ended"] == "finished" and report["requests"]["failed"] == 5
    errors = capsys.readouterr().err
    assert errors.count("aurora: ") == 1 and "Traceback" not in errors
    assert re.search(
        r"^aurora: none of the run's own 5 requests was answered, the last one failed with: .*the "
        r"prompt is too long; look at the settings of `traffic` and `backend`, and into '.*logs'$",
        errors,
        re.MULTILINE,
    )


def test_output_that_depends_on_the_drafter_is_counted_as_mismatch(settings):
    settings["backend"] = {
        "name": "fake",
        "wait_for_swaps": {10: 1},
        "lossy_versions": list(range(1, 100)),
    }
    settings["traffic"]["lossless_every"] = 1
    assert execute(settings, requests=20) == 0
    lossless = read_report(settings)["lossless"]
    assert 0 < lossless["mismatches"] < lossless["checked"]
    assert lossless["differences"][0]["max_draft_version"] >= 1


def test_dead_engine_ends_the_run_with_one_sentence_and_a_report(settings, capsys):
    settings["backend"] = {"name": "fake", "die_after_requests": 30}
    watcher = Watcher()
    assert execute(settings, watcher, requests=10_000) == 1
    report = read_report(settings)
    assert report["ended"] == "engine_died" and report["error"] == "the fake engine died"
    assert report["requests"]["total"] < 100
    assert watcher.report is not None and "fake engine died" in str(watcher.error)
    captured = capsys.readouterr()
    assert "the fake engine died" in captured.err and "Traceback" not in captured.err
    assert not learners()


def test_learner_that_is_given_up_does_not_stop_serving_but_is_no_success(settings, capsys):
    settings["learner"]["max_restarts"] = 0
    settings["backend"]["wait_for_swaps"] = {10: 1}
    watcher = Watcher(on_swap=lambda version: [learner.kill() for learner in learners()])
    assert execute(settings, watcher, requests=100) == 1
    report = read_report(settings)
    assert report["learner"]["state"] == "gave_up" and report["requests"]["total"] == 100
    assert "serves on without learning" in capsys.readouterr().out


def test_learner_that_refuses_its_configuration_ends_the_run(settings, tmp_path, monkeypatch):
    (tmp_path / "refusing.py").write_text(
        "import sys\nprint('learner: no such option', file=sys.stderr)\nsys.exit(2)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    plugins = load_plugins(watcher := Watcher())
    with pytest.raises(AuroraError, match=r"^learner: no such option$"):
        run(RunConfig.model_validate(settings), plugins, learner_module="refusing")
    assert watcher.report is None and isinstance(watcher.error, AuroraError)


def test_engine_that_cannot_start_is_a_user_error(settings):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings["backend"]["port"] = port = taken.getsockname()[1]
        with pytest.raises(BackendError, match=f"port {port} on 127.0.0.1 is in use"):
            execute(settings)
    assert not (Path(settings["run_dir"]) / "report.json").exists()


def test_person_switches_speculation_off_in_a_run_and_it_stays_off_in_the_next(settings, capsys):
    settings["backend"]["wait_for_swaps"] = {10: 1, 20: 2}
    settings["learner"]["max_steps"] = 1
    run_dir, answers = Path(settings["run_dir"]), []

    def switch_off(version):
        if version == 1:
            give = threading.Thread(
                target=lambda: answers.append(
                    main(["rollback", "--off", "--run-dir", str(run_dir)])
                )
            )
            give.start()

    watcher = Watcher(on_swap=switch_off)
    assert execute(settings, watcher, requests=30) == 0
    assert answers == [0] and watcher.swaps == [1, NO_DRAFTER]
    assert "speculation is switched off; decoding waited" in capsys.readouterr().out
    state = read_run_state(run_dir / "state.json")
    assert (state.champion, state.previous, state.pinned) == (None, 1, True)
    [line] = [one for one in read_lines(run_dir / "verdicts.jsonl") if one["kind"] == "operator"]
    assert line["reason"] == "a person decided: speculation is switched off"
    settings["backend"]["wait_for_swaps"] = {}
    again = Watcher()
    assert execute(settings, again, requests=5) == 0
    assert again.swaps == [] and read_run_state(run_dir / "state.json").pinned
    assert not (run_dir / "control.sock").exists()


@pytest.mark.parametrize(
    ("policy", "missing"), [("canary", "request_routing"), ("shadow", "shadow_drafting")]
)
def test_policy_whose_trials_the_engine_cannot_do_is_refused_before_anything_starts(
    settings, monkeypatch, policy, missing
):
    import dataclasses

    provides = dataclasses.replace(FakeBackend.provides.fget(None), **{missing: False})
    monkeypatch.setattr(FakeBackend, "provides", property(lambda self: provides))
    settings["swap_policy"] = policy
    with pytest.raises(ConfigError, match="which backend 'fake' cannot; use swap_policy: gate"):
        execute(settings, requests=5)


def test_later_run_continues_versions_and_live_drafter(settings):
    assert execute(settings, requests=35) == 0
    first = read_report(settings)["drafter"]
    watcher = Watcher()
    assert execute(settings, watcher, requests=35) == 0
    second = read_report(settings)
    assert watcher.swaps[0] > first["newest_version"] - 1 >= first["live_version"] - 1
    assert second["drafter"]["live_version"] == watcher.swaps[-1]
    # The first requests of the second run were served by a drafter already.
    assert second["acceptance_length"]["first"] > 1.5


def test_damaged_live_version_is_left_aside_for_the_previous_one(settings):
    assert execute(settings, requests=35) == 0
    directory = RunDirectory(Path(settings["run_dir"]))
    state = read_run_state(directory.state)
    (directory.store.directory(state.champion) / "model.safetensors").write_bytes(b"cut")
    lineage = build.read_lineage(directory)
    assert lineage.live.version == state.previous and lineage.previous is None


def test_directory_of_another_speculator_is_refused(settings):
    settings["backend"]["wait_for_swaps"] = {5: 1}
    assert execute(settings, requests=6) == 0

    class Renamed(FakePlugin):
        @hookimpl
        def aurora_register_speculators(self):
            for registration in super().aurora_register_speculators():
                yield type(registration)("other", registration.target)

    plugins = Plugins()
    plugins.register(Renamed(), "renamed")
    config = RunConfig.model_validate({**settings, "speculator": "other"})
    with pytest.raises(ConfigError, match="holds drafters of speculator 'fake', not 'other'"):
        run(config, plugins, learner_module=FAKE_LEARNER)


def test_batch_size_above_the_held_out_prompts_is_refused_before_anything_starts(settings):
    settings["final_bench"] = {"num_prompts": 2, "batch_sizes": [1, 4]}
    with pytest.raises(ConfigError, match=r"asks for 4 requests at once, but there are 2"):
        execute(settings)


def test_report_folder_that_cannot_be_written_is_refused_before_anything_starts(settings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="reports cannot be written to"):
        execute(settings, report_dir=tmp_path / "file" / "reports")


def test_run_without_traffic_ends_after_the_requests_of_clients(settings):
    del settings["traffic"], settings["backend"]["wait_for_swaps"]
    config = RunConfig.model_validate(settings)
    parts = build.build_parts(config, load_plugins())

    async def serve() -> int:
        directory = RunDirectory(config.run_dir)
        codes = []
        with directory.locked(), RunConsole() as console:
            one = Run(parts, directory, console, learner_module=FAKE_LEARNER)

            async def execute_run():
                codes.append(await one.execute(requests=5))

            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(execute_run)
                    while not one.outcome.served:
                        await anyio.sleep(0.01)
                    async with Endpoint(parts.backend.url) as endpoint:
                        for number in range(5):
                            await endpoint.complete(Prompt("", str(number)), RequestSettings())
        return codes[0]

    assert anyio.run(serve) == 0
    report = read_report(settings)
    assert report["requests"]["total"] == 5
    assert report["lossless"]["checked"] == 0 and report["otps"]["speedup"] is None


def test_duration_ends_the_run_and_finishes_requests_in_flight(settings):
    settings["backend"] = "fake"
    assert execute(settings, duration_s=0.5) == 0
    assert read_report(settings)["requests"]["failed"] == 0


async def test_serving_alone_uses_the_live_drafter_and_writes_nothing(settings):
    code = await anyio.to_thread.run_sync(
        lambda: (
            subprocess.run(
                [sys.executable, "-c", SCRIPT, json.dumps(settings), "35"], env=script_environment()
            ).returncode
        )
    )
    assert code == 0
    run_dir = Path(settings["run_dir"])
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    champion = read_run_state(run_dir / "state.json").champion
    config = RunConfig.model_validate(settings)
    async with serve_only(config, load_plugins()) as url, Endpoint(url) as endpoint:
        answer = await endpoint.complete(Prompt("sql", "question"), RequestSettings())
    assert answer.speculation.max_draft_version == champion
    async with serve_only(config, load_plugins(), version=1) as url, Endpoint(url) as endpoint:
        answer = await endpoint.complete(Prompt("sql", "question"), RequestSettings())
    assert answer.speculation.max_draft_version == 1
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == before


SCRIPT = """
import json, sys
from aurora_core.config import RunConfig
from aurora_core.controller.run import run
from aurora_core.plugins import Plugins
from aurora_core.target.architecture import parse_architecture
from aurora_core.testing.fake_backend import FakeBackend
from aurora_core.testing.fake_speculator import FakePlugin

plugins = Plugins()
plugins.register(FakePlugin(), "fake")
settings, requests = json.loads(sys.argv[1]), sys.argv[2]
code = run(
    RunConfig.model_validate(settings),
    plugins,
    requests=int(requests) if requests else None,
    learner_module="aurora_core.testing.fake_learner",
)
assert not {"torch", "lightning", "transformers"} & sys.modules.keys(), "not light any more"
sys.exit(code)
"""


def script_environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("starting", signal.SIGINT),
        ("starting", signal.SIGTERM),
        ("serving", signal.SIGTERM),
        ("swapped", signal.SIGINT),
        ("measuring", signal.SIGINT),
        ("measuring", signal.SIGTERM),
    ],
)
def test_interrupted_run_stops_cleanly_and_leaves_a_consistent_directory(settings, number, moment):
    settings["backend"]["step_ms"] = 5.0
    directory = RunDirectory(Path(settings["run_dir"]))
    requests, told = "", directory.path.with_name("told.txt")
    if moment == "measuring":
        requests, settings["final_bench"] = "40", {"num_prompts": 10_000, "max_tokens": 24}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(settings), requests],
        env=script_environment(),
        stdout=told.open("wb"),
        stderr=subprocess.PIPE,
        text=True,
    )
    reached = {
        "starting": lambda: (directory.path / "run.lock").exists(),
        "serving": lambda: len(read_whole_lines(directory.requests)) > 5,
        "swapped": lambda: any(
            line["kind"] == "swap" for line in read_whole_lines(directory.verdicts)
        ),
        "measuring": lambda: "measuring the speed-up" in told.read_text(),
    }[moment]
    try:
        deadline = time.monotonic() + 60
        while not reached():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()  # as long as it lives, its errors have no end
                pytest.fail(f"not {moment}: {process.stderr.read()}")
            time.sleep(0.02)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    output = told.read_text()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert not any(child.is_running() and child.status() != "zombie" for child in children)
    for record in (directory.requests, directory.verdicts):
        assert not record.exists() or record.read_text().endswith("\n")
    assert not list(directory.path.rglob("*.partial*"))
    if moment != "starting":
        report = read_report(settings)
        assert report["ended"] == "interrupted" and report["requests"]["total"] > 0
        assert 0 <= report["requests"]["unfinished"] <= 3
        assert report["drafter"]["live_version"] == read_run_state(directory.state).champion
        assert re.search(r"ended +interrupted", output)
    with directory.locked():  # and the next run may begin
        pass


def read_whole_lines(path):
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def test_controller_imports_no_torch():
    code = (
        "import sys, aurora_core.controller.run, aurora_core.controller.serve_only\n"
        "heavy = {'torch', 'lightning', 'transformers', 'mlflow', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=script_environment(), check=True)
