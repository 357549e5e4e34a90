"""Fixtures of the backend suite: one that the author writes, the others to change if needed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from aurora_core.interfaces import Backend, ServePlan, Speculator
from aurora_core.records import DraftVersion, TargetSpec, Trace
from aurora_core.spool import SpoolOptions, open_reader
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.suites.material import tiny_target
from aurora_core.testing.suites.required import missing_fixture
from aurora_core.testing.suites.second_lineage import second_lineage
from aurora_core.testing.suites.served_backend import ServedBackend
from aurora_core.testing.suites.speculator_fixtures import train
from aurora_core.testing.toy_run import install_toy
from aurora_core.testing.toy_speculator import ToyOptions, ToySpeculator
from aurora_core.versions import VersionStore

PROMPTS = ("SELECT name FROM t", "def f(x):", "What is 2 + 2?", "hello")
NUM_RECORDED_TOKENS = 24
WAIT_S = 60.0
"""Seconds that a trace may take to reach the disk."""

Publisher = Callable[[nn.Module], DraftVersion]
"""Publish a module as the next version of the run."""

Republisher = Callable[[DraftVersion], DraftVersion]
"""Publish the files of a version under the next number."""


class BackendFixtures:
    """What every part of the suite needs. `backend` must be overridden."""

    _running: ClassVar[dict[str, ServedBackend]] = {}
    _published: ClassVar[dict[str, DraftVersion]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._running, cls._published = {}, {}  # one engine for the tests of a class

    @pytest.fixture
    def backend(self) -> Backend:
        """A new backend, not started. Leave the scope alone: tests start and stop their own."""
        missing_fixture("backend", "return a new backend that is not started")

    @pytest.fixture
    def records_traces(self) -> bool:
        """Whether the engine writes traces to the plan's sink, and its answers follow a target."""
        return True

    @pytest.fixture
    def settling_s(self) -> float:
        """Seconds that the engine may take to note in `finished` and `status` what it answered.

        0 where it notes a request before it answers it; a server whose workers are told of an end
        with their next step needs a few.
        """
        return 0.0

    @pytest.fixture
    def target(self) -> TargetSpec:
        """The tiny target to serve."""
        return tiny_target()

    @pytest.fixture
    def speculator_name(self) -> str:
        """Registered name of what drafts; the engine's process must find it installed."""
        return "toy"

    @pytest.fixture
    def speculator(self, target: TargetSpec) -> Speculator:
        """What drafts: a trainable speculator whose `formats` the backend loads."""
        return ToySpeculator(ToyOptions(draft_vocab_size=256), target)

    @pytest.fixture
    def num_speculative_tokens(self) -> int:
        """Depth of the drafts."""
        return 3

    @pytest.fixture
    def num_sampled_answers(self) -> int:
        """Sampled answers that are compared, with drafts and without; the more, the finer."""
        return 160

    @pytest.fixture
    def overfit_steps(self) -> int:
        """Optimizer steps within which the speculator learns a few answers by heart."""
        return 400

    @pytest.fixture
    def overfit_learning_rate(self) -> float:
        """AdamW's learning rate meanwhile."""
        return 2e-2

    @pytest.fixture
    def plugins(self) -> tuple[str, ...] | None:
        """Plugins that the engine's process loads; the toy is laid out for it."""
        return ("toy",)

    @pytest.fixture
    def make_plan(
        self,
        target: TargetSpec,
        speculator: Speculator,
        speculator_name: str,
        num_speculative_tokens: int,
        plugins: tuple[str, ...] | None,
        records_traces: bool,
    ) -> Callable[..., ServePlan]:
        """Make a plan to serve `target`, all of whose files lie in one folder."""

        def make(run_dir: Path, **changes: Any) -> ServePlan:
            fields: dict[str, Any] = {
                "target": target,
                "speculator": speculator_name,
                "speculator_options": speculator.options.model_dump(mode="json"),
                "plugins": plugins,
                "needs": speculator.needs,
                "num_speculative_tokens": num_speculative_tokens,
                "versions_dir": str(run_dir / "versions"),
                "initial_version": None,
                "sink": "spool" if records_traces else None,
                "sink_options": {"path": str(run_dir / "spool")} if records_traces else {},
                "run_dir": str(run_dir),
                "seed": 0,
            }
            return ServePlan(**(fields | changes))

        return make

    @pytest.fixture
    def served(
        self,
        request: pytest.FixtureRequest,
        backend: Backend,
        make_plan: Callable[..., ServePlan],
        settling_s: float,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> ServedBackend:
        """The running engine, without a live drafter. Shared: leave it able to serve."""
        if "engine" not in self._running:
            plan = make_plan(tmp_path_factory.mktemp("run"))
            if backend.provides.holds_lineages:
                plan = dataclasses.replace(plan, lineages=(second_lineage(plan),))
            served = ServedBackend(backend, plan, settling_s=settling_s)
            with toy_on_the_path(tmp_path_factory.mktemp("plugins")):
                served.start()
            self._running["engine"] = served
            test_class = request.node.getparent(pytest.Class)
            assert test_class is not None, "suites are classes"
            test_class.addfinalizer(lambda: self._running.pop("engine").close())
        served = self._running["engine"]
        served.swap(None)
        return served

    @pytest.fixture
    def weights(self, target: TargetSpec) -> TargetWeights:
        """The target's tensors."""
        return TargetWeights(target)

    @pytest.fixture
    def publish(
        self, served: ServedBackend, speculator: Speculator, speculator_name: str
    ) -> Publisher:
        """Publish modules in the folder of the running engine."""
        versions_dir = Path(served.plan.versions_dir)
        return lambda module: stage(
            versions_dir, speculator, speculator_name, lambda path: speculator.save(module, path)
        )

    @pytest.fixture
    def republish(
        self, served: ServedBackend, speculator: Speculator, speculator_name: str
    ) -> Republisher:
        """Publish versions once more in the folder of the running engine."""
        versions_dir = Path(served.plan.versions_dir)

        def copy(draft: DraftVersion, path: Path) -> None:
            for name in ("config.json", "model.safetensors"):
                shutil.copy(Path(draft.path) / name, path / name)

        return lambda draft: stage(
            versions_dir, speculator, speculator_name, lambda path: copy(draft, path)
        )

    @pytest.fixture
    def draft(
        self, publish: Publisher, speculator: Speculator, weights: TargetWeights
    ) -> DraftVersion:
        """A published drafter that has learned nothing."""
        torch.manual_seed(0)
        return publish(speculator.build_module(weights, ()))

    @pytest.fixture
    def learned(
        self,
        served: ServedBackend,
        speculator: Speculator,
        weights: TargetWeights,
        publish: Publisher,
        draft: DraftVersion,
        num_speculative_tokens: int,
        overfit_steps: int,
        overfit_learning_rate: float,
        records_traces: bool,
    ) -> DraftVersion:
        """A published drafter that learned the greedy answers to `PROMPTS` from their traces.

        Any other drafter where the engine writes no traces.
        """
        if not records_traces:
            return draft
        if "learned" not in self._published:
            traces = record(served)
            torch.manual_seed(0)
            module = speculator.build_module(weights, traces)
            batch = speculator.collate(traces)
            for _ in range(0, overfit_steps, 50):
                train(speculator, module, batch, 50, overfit_learning_rate)
                accepted, anchors = speculator.acceptance(module, batch, num_speculative_tokens)
                missing = int((anchors - accepted[:, -1]).sum())
                if missing <= len(traces) * (num_speculative_tokens - 1):
                    break
            self._published["learned"] = publish(module)
        return self._published["learned"]


def stage(
    versions_dir: Path, speculator: Speculator, name: str, write: Callable[[Path], None]
) -> DraftVersion:
    """Publish what `write` writes as the next version, as a learner would."""
    store = VersionStore(versions_dir)
    return store.stage(
        store.next_version(),
        write,
        parent=None,
        speculator=name,
        target_fingerprint=speculator.target.fingerprint,
        global_step=0,
        num_tokens_trained=0,
    )


@contextlib.contextmanager
def toy_on_the_path(folder: Path) -> Iterator[None]:
    """Let processes that are started meanwhile import what this one can, and find the toy."""
    places = [str(install_toy(folder)), *(place for place in sys.path if place)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(places))
        yield


def traces_of(served: ServedBackend, lineage: str = "") -> list[Trace]:
    """Return what the engine recorded so far of the default lineage, or of the second one."""
    plan = served.plan.lineages[0] if lineage else served.plan
    reader = open_reader(SpoolOptions(path=Path(str(plan.sink_options["path"]))).url)
    reader.poll()
    return list(reader.iterate())


def record(served: ServedBackend) -> list[Trace]:
    """Ask for every prompt at once, greedily, and return the traces of it."""
    known = {trace.trace_id for trace in traces_of(served)}
    served.ask(PROMPTS, max_tokens=NUM_RECORDED_TOKENS)
    return wait_for_traces(served, known, len(PROMPTS))


def wait_for_traces(
    served: ServedBackend, known: Collection[str], count: int, lineage: str = ""
) -> list[Trace]:
    """Return new traces of a lineage once so many have reached the disk."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        new = [trace for trace in traces_of(served, lineage) if trace.trace_id not in known]
        if len(new) >= count:
            return new
        time.sleep(0.05)
    pytest.fail(f"{count} requests left {len(new)} traces within {WAIT_S:.0f} s")
