"""The toy's world: one tiny target, an installed plugin, a sink in memory, a place for events."""

from __future__ import annotations

import io
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from aurora_core.interfaces import TraceReader
from aurora_core.learner.control import Control, EventWriter
from aurora_core.learner.plan import LearnerPlan
from aurora_core.learner.protocol import Event, read_event
from aurora_core.records import TargetSpec, Trace
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.testing.toy_run import (
    install_toy,
    make_learnable_trace,
    make_toy_plan,
    write_traces,
)
from aurora_core.testing.toy_speculator import ToyOptions, ToySpeculator
from aurora_core.versions import VersionStore


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetSpec:
    folder = tmp_path_factory.mktemp("target")
    patch = pytest.MonkeyPatch()
    patch.setenv("AURORA_CACHE_DIR", str(folder / "cache"))
    spec = read_target_spec(
        make_tiny_target(folder / "tiny", vocab_size=128, hidden_size=16, num_layers=2)
    )
    patch.undo()
    return spec


@pytest.fixture(scope="session")
def weights(target: TargetSpec) -> TargetWeights:
    return TargetWeights(target)


@pytest.fixture
def speculator(target: TargetSpec) -> ToySpeculator:
    return ToySpeculator(ToyOptions(), target)


@pytest.fixture
def make_trace(target: TargetSpec) -> Callable[..., Trace]:
    return lambda seed, **options: make_learnable_trace(seed, target, **options)


@pytest.fixture
def toy_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install_toy(tmp_path / "site")))


class Recorder(EventWriter):
    """Events as a list."""

    def __init__(self, control: Control) -> None:
        self.lines = io.BytesIO()
        super().__init__(self.lines, control)

    @property
    def events(self) -> list[Event]:
        return [read_event(line) for line in self.lines.getvalue().splitlines()]

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.event == kind]


@pytest.fixture
def control() -> Control:
    return Control()


@pytest.fixture
def recorder(control: Control) -> Recorder:
    return Recorder(control)


@pytest.fixture
def learn(toy_installed: None) -> Iterator[Callable[[LearnerPlan], Recorder]]:
    """Run a plan in this process until its `max_steps`; return what it reported."""
    from aurora_core.learner.process import run

    def run_plan(plan: LearnerPlan) -> Recorder:
        initial = plan.initial_version
        control = Control(live_version=initial.version if initial else None)
        recorder = Recorder(control)
        # A learner that never reaches its last step fails the test instead of holding it up.
        watchdog = threading.Timer(120, control.stop)
        watchdog.start()
        try:
            run(plan, control=control, events=recorder)
        finally:
            watchdog.cancel()
        return recorder

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield run_plan
    for number, handler in handlers.items():
        signal.signal(number, handler)


class MemoryReader(TraceReader):
    """A sink in memory: new traces first, then all seen ones in turn."""

    def __init__(self, traces: Sequence[Trace] = (), held_out: Sequence[Trace] = ()) -> None:
        self.arriving, self.held_out = list(traces), list(held_out)
        self.fresh: list[Trace] = []
        self.seen: list[Trace] = []
        self.position = 0

    def poll(self) -> int:
        num_new = len(self.arriving)
        self.fresh += self.arriving
        self.arriving = []
        return num_new

    def sample(self, num_traces: int, *, fresh: int) -> list[Trace]:
        new = [self.fresh.pop(0) for _ in range(min(fresh, num_traces, len(self.fresh)))]
        replayed = []
        while self.seen and len(replayed) < min(num_traces - len(new), len(self.seen)):
            replayed.append(self.seen[self.position % len(self.seen)])
            self.position += 1
        self.seen += new
        return new + replayed

    def holdout(self, num_traces: int) -> list[Trace]:
        return self.held_out[-num_traces:] if num_traces else []

    def iterate(self) -> Iterator[Trace]:
        yield from self.seen + self.fresh

    @property
    def num_training(self) -> int:
        return len(self.fresh) + len(self.seen)

    def state_dict(self) -> dict[str, object]:
        return {"fresh": list(self.fresh), "seen": list(self.seen), "position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.fresh, self.seen = list(state["fresh"]), list(state["seen"])
        self.position = state["position"]


@pytest.fixture
def memory_reader() -> Callable[..., MemoryReader]:
    return MemoryReader


@pytest.fixture(scope="session")
def spool(target: TargetSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty traces, some of them held out; copy it, because a reader writes counts into it."""
    path = tmp_path_factory.mktemp("spool") / "spool"
    write_traces(path, [make_learnable_trace(seed, target) for seed in range(40)])
    return path


@pytest.fixture
def make_plan(target: TargetSpec, spool: Path, tmp_path: Path) -> Callable[..., LearnerPlan]:
    """Plan to learn from a copy of the spool, in a folder of that name; existing ones are kept."""

    def make(name: str, **options: Any) -> LearnerPlan:
        run_dir = tmp_path / name
        if not run_dir.exists():
            shutil.copytree(spool, run_dir / "spool")
        return make_toy_plan(run_dir, target, **options)

    return make


@pytest.fixture
def last_checkpoint() -> Callable[[LearnerPlan], dict[str, Any]]:
    def read(plan: LearnerPlan) -> dict[str, Any]:
        path = max(Path(plan.learner_dir).glob("step-*.ckpt"))
        content: dict[str, Any] = torch.load(path, weights_only=True)
        return content

    return read


@pytest.fixture
def store_of() -> Callable[[LearnerPlan], VersionStore]:
    return lambda plan: VersionStore(Path(plan.versions_dir))
