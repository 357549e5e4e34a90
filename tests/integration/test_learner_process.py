"""`python -m aurora_core.learner` as the controller runs it: killed, restarted, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from aurora_core.learner.plan import LearnerPlan, write_plan
from aurora_core.learner.protocol import Event, Live, Stop, command_line, read_event
from aurora_core.records import TargetSpec
from aurora_core.target.spec import read_target_spec
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.testing.toy_run import (
    install_toy,
    make_learnable_trace,
    make_toy_plan,
    write_traces,
)
from aurora_core.versions import VersionStore

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 300
NAN = float("nan")


class Learner:
    """A running learner; everything it writes to stdout must be an event."""

    def __init__(self, plan: LearnerPlan, folder: Path, log: Path) -> None:
        write_plan(plan, folder / "plan.json")
        path = os.pathsep.join([str(REPOSITORY), str(install_toy(folder / "site"))])
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "aurora_core.learner", str(folder / "plan.json")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self.events: list[Event] = []
        self.has_ended = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.changed:
                self.events.append(read_event(line))
                self.changed.notify_all()
        with self.changed:
            self.has_ended = True
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[Any], bool]) -> Any:
        """Return the first event, past or future, that meets the condition."""

        def found() -> list[Event]:
            return [event for event in self.events if condition(event)]

        with self.changed:
            ok = self.changed.wait_for(lambda: bool(found()) or self.has_ended, TIMEOUT_S)
            assert ok and found(), (self.events, self.log.read_text())
            return found()[0]

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def wait(self) -> int:
        status = self.process.wait(TIMEOUT_S)
        self.thread.join(TIMEOUT_S)
        return status

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.thread.join(TIMEOUT_S)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSpec]:
    folder = tmp_path_factory.mktemp("target")
    patch = pytest.MonkeyPatch()
    patch.setenv("AURORA_CACHE_DIR", str(folder / "cache"))
    yield read_target_spec(
        make_tiny_target(folder / "tiny", vocab_size=128, hidden_size=16, num_layers=2)
    )
    patch.undo()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[LearnerPlan], Learner]]:
    started: list[Learner] = []

    def start_one(plan: LearnerPlan) -> Learner:
        started.append(Learner(plan, tmp_path, tmp_path / "learner.log"))
        return started[-1]

    yield start_one
    for learner in started:
        learner.end()


@dataclass
class Story:
    """One learner killed in the middle, and its successor, which loses its controller."""

    killed: list[Any] = field(default_factory=list)
    steps_on_disk: list[int] = field(default_factory=list)
    successor: list[Any] = field(default_factory=list)
    exit_status: int = -1
    learner_dir: Path = Path()
    versions_dir: Path = Path()


@pytest.fixture(scope="module")
def story(target: TargetSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("story")
    plan = make_toy_plan(
        folder / "run",
        target,
        publish_every_s=0.3,
        checkpoint_every_s=0.3,
        max_replays_per_trace=1_000_000,
    )
    spool = folder / "run" / "spool"
    write_traces(spool, [make_learnable_trace(seed, target) for seed in range(30)])
    bad = [make_learnable_trace(seed, target, last_hidden_state=NAN) for seed in range(50, 53)]
    write_traces(spool, bad)
    told = Story(learner_dir=Path(plan.learner_dir), versions_dir=Path(plan.versions_dir))
    learner = Learner(plan, folder, folder / "learner.log")
    try:
        first = learner.wait_for(lambda event: event.event == "published").version
        learner.send(command_line(Live(version=first.version)))
        learner.wait_for(
            lambda event: (
                event.event == "published"
                and event.version.holdout is not None
                and event.version.holdout.live_version == first.version
            )
        )
        learner.wait_for(
            lambda event: (
                event.event == "progress"
                and event.metrics["train/skipped_traces"] > 0
                and len(list(told.learner_dir.glob("step-*.ckpt"))) == 2
            )
        )
        os.killpg(learner.process.pid, signal.SIGKILL)
        learner.wait()
        told.killed = learner.events
        told.steps_on_disk = [int(path.stem[5:]) for path in told.learner_dir.glob("step-*.ckpt")]
        successor = Learner(plan, folder, folder / "learner.log")
        try:
            successor.wait_for(lambda event: event.event == "published")
            assert successor.process.stdin is not None
            successor.process.stdin.close()
            told.exit_status = successor.wait()
            told.successor = successor.events
        finally:
            successor.end()
    finally:
        learner.end()
    yield told


def test_it_publishes_complete_versions(story: Story) -> None:
    published = [event.version for event in story.killed if event.event == "published"]
    assert [draft.version for draft in published] == list(range(1, len(published) + 1))
    store = VersionStore(story.versions_dir)
    for draft in published:
        assert store.verify(draft.version) == draft


def test_a_version_is_compared_with_the_live_one_once_the_controller_names_it(
    story: Story,
) -> None:
    published = [event.version for event in story.killed if event.event == "published"]
    live_versions = [draft.holdout.live_version for draft in published]
    assert live_versions[0] is None and live_versions[-1] == 1


def test_traces_with_nan_are_counted_and_never_reach_the_weights(story: Story) -> None:
    numbers = [event.metrics for event in story.killed if event.event == "progress"]
    assert numbers[-1]["train/skipped_traces"] > 0
    for path in story.learner_dir.glob("step-*.ckpt"):
        state = torch.load(path, weights_only=True)["state_dict"]
        assert all(bool(tensor.isfinite().all()) for tensor in state.values())


def test_after_kill_9_the_next_one_goes_on_from_the_newest_checkpoint(story: Story) -> None:
    started = [event for event in story.successor if event.event == "started"]
    assert [(event.step, event.resumed) for event in started] == [(max(story.steps_on_disk), True)]
    before = [event.version for event in story.killed if event.event == "published"]
    after = [event.version for event in story.successor if event.event == "published"]
    assert after[0].version > before[-1].version
    assert after[0].global_step > max(story.steps_on_disk)
    assert after[0].num_tokens_trained > before[0].num_tokens_trained


def test_a_learner_without_controller_stops_with_a_checkpoint(story: Story) -> None:
    assert story.exit_status == 0
    stopped = story.successor[-1]
    assert stopped.event == "stopped"
    assert (story.learner_dir / f"step-{stopped.step:09d}.ckpt").is_file()
    assert not list(story.learner_dir.glob("*.partial"))
    assert not list(story.versions_dir.glob("*.partial"))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, "stop"])
def test_every_way_of_asking_stops_it_cleanly(
    start: Any, target: TargetSpec, tmp_path: Path, how: signal.Signals | str
) -> None:
    plan = make_toy_plan(tmp_path / "run", target, checkpoint_every_s=3600.0)
    if how != "stop":  # one of them while it still waits for its first traces
        traces = [make_learnable_trace(seed, target) for seed in range(20)]
        write_traces(tmp_path / "run" / "spool", traces)
    learner = start(plan)
    if how == "stop":
        waiting = learner.wait_for(lambda event: event.event == "waiting")
        assert waiting.reason == "0 of the 8 traces to start from are there"
        learner.send(command_line(Stop()))
    else:
        learner.wait_for(lambda event: event.event == "published")
        os.killpg(learner.process.pid, how)
    assert learner.wait() == 0
    stopped = learner.events[-1]
    assert stopped.event == "stopped"
    names = [path.name for path in (tmp_path / "run" / "learner").glob("step-*")]
    assert names == ([] if how == "stop" else [f"step-{stopped.step:09d}.ckpt"])


def test_a_wrong_plan_is_one_sentence_and_exit_status_2(
    start: Any, target: TargetSpec, tmp_path: Path
) -> None:
    plan = make_toy_plan(tmp_path / "run", target, speculator_options={"num_stepz": 3})
    learner = start(plan)
    assert learner.wait() == 2
    assert learner.events == []
    text = learner.log.read_text()
    assert text.startswith("speculator 'toy' is not a usable configuration:")
    assert "speculator.num_stepz: unknown option" in text and "Traceback" not in text


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns_from_the_same_traces(
    start: Any, target: TargetSpec, tmp_path: Path
) -> None:
    # Lengths differ, so that the ranks of a step never have equally many tokens.
    traces = [
        make_learnable_trace(seed, target, num_tokens=8 + 7 * (seed % 4)) for seed in range(16)
    ]
    contents = []
    for name, options in {
        "one": {"batch_traces": 4, "fresh_traces": 2},
        "two": {"batch_traces": 2, "fresh_traces": 1, "devices": 2, "strategy": "ddp"},
    }.items():
        write_traces(tmp_path / name / "spool", traces)
        # Without clipping: the moments of the optimizers then show the scale of the gradient.
        plan = make_toy_plan(tmp_path / name, target, max_steps=4, gradient_clip=0, **options)
        learner = start(plan)
        assert learner.wait() == 0, learner.log.read_text()
        kinds = [event.event for event in learner.events]
        assert kinds.count("started") == 1 and kinds[-1] == "stopped"
        [path] = (tmp_path / name / "learner").glob("step-*.ckpt")
        content = torch.load(path, weights_only=True)
        contents.append(content)
    one, two = contents
    assert one["aurora"]["num_tokens_trained"] == two["aurora"]["num_tokens_trained"]
    for name, tensor in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], tensor, rtol=0, atol=2e-3, msg=name)
    for index, moments in one["optimizer_states"][0]["state"].items():
        for name, tensor in moments.items():
            other = two["optimizer_states"][0]["state"][index][name]
            assert (other - tensor).norm() <= 0.02 * tensor.norm(), name
