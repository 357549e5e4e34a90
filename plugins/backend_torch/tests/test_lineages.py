"""Several lineages in one engine: whose drafter serves, whose trace and whose swap it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aurora_backend_torch.build import build_engine
from aurora_backend_torch.config import TorchBackendOptions
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import LineagePlan
from aurora_core.lineages import LineageRule
from aurora_core.records import NO_DRAFTER, Needs, Sampling, Trace
from aurora_core.spool import SpoolOptions, open_reader
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.testing.toy_run import install_toy
from aurora_core.testing.toy_speculator import ToyOptions, ToySpeculator
from aurora_core.versions import VersionStore
from plugins.backend_torch.tests.conftest import plan_for
from plugins.backend_torch.tests.test_engine import PROMPTS, Outputs, generate, request

LINEAGES = ("", "second", "third")
DEPTHS = {"": 3, "second": 2, "third": 1}


class Served:
    """An engine with three lineages of the toy, two published versions in each of the first two."""

    def __init__(self, directory: Path, run_dir: Path) -> None:
        self.target = read_target_spec(directory)
        self.folders = {name: run_dir / "lineages" / name if name else run_dir for name in LINEAGES}
        speculator = ToySpeculator(ToyOptions(), self.target)
        torch.manual_seed(0)
        for name in ("", "second"):
            store = VersionStore(self.folders[name] / "versions")
            for version in (1, 2):
                module = speculator.build_module(TargetWeights(self.target), [])
                store.stage(
                    version,
                    lambda path, module=module: speculator.save(module, path),
                    parent=None,
                    speculator="toy",
                    target_fingerprint=self.target.fingerprint,
                    global_step=0,
                    num_tokens_trained=0,
                )
        aux = Needs(features=frozenset({"aux_hidden_states", "last_hidden_state"}), aux_layers=(1,))
        needs = {"second": aux, "third": Needs()}
        plans = tuple(
            LineagePlan(
                rule=LineageRule(name=name),
                speculator="toy",
                speculator_options={},
                needs=needs[name],
                num_speculative_tokens=DEPTHS[name],
                versions_dir=str(self.folders[name] / "versions"),
                initial_version=None,
                sink="spool",
                sink_options={"path": str(self.folders[name] / "spool")},
            )
            for name in LINEAGES[1:]
        )
        plan = replace(plan_for(self.target, run_dir), lineages=plans)
        options = {"num_threads": 1, "max_running_requests": 6, "dtype": "float32"}
        self.engine = build_engine(
            plan, TorchBackendOptions.model_validate(options | {"max_verification_rows": 60})
        )
        self.engine.start()

    def traces(self, lineage: str) -> dict[str, Trace]:
        """Stop the engine and read what it recorded of a lineage."""
        self.engine.shutdown()
        reader = open_reader(SpoolOptions(path=self.folders[lineage] / "spool").url)
        reader.poll()
        return {trace.trace_id: trace for trace in reader.iterate()}


@pytest.fixture
def served(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    directory = make_tiny_target(tmp_path_factory.mktemp("target"), vocab_size=256, num_layers=4)
    monkeypatch.syspath_prepend(str(install_toy(tmp_path / "toy")))
    one = Served(directory, tmp_path / "run")
    yield one
    one.engine.shutdown()


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.9, seed=3, rule="point_mass")]
)
def test_whichever_lineage_serves_the_output_has_the_same_bits(
    served: Served, sampling: Sampling
) -> None:
    plain = generate(
        served.engine,
        [request(f"a{i}", ids, sampling=sampling, drafter="none") for i, ids in enumerate(PROMPTS)],
    )
    served.engine.swap(1, "")
    served.engine.swap(2, "", lineage="second")
    mixed = [
        request(f"{name}-{i}", ids, sampling=sampling, lineage=name)
        for i, ids in enumerate(PROMPTS)
        for name in LINEAGES
    ]
    assert generate(served.engine, mixed) == [out for out in plain for _ in LINEAGES]
    for stats in served.engine.finished(len(PROMPTS)):
        version = {"": 1, "second": 2, "third": NO_DRAFTER}[stats.lineage]
        assert stats.max_draft_version == version
        assert len(stats.accepted_per_position) <= DEPTHS[stats.lineage]


def test_a_swap_is_for_the_requests_of_its_lineage_alone(served: Served) -> None:
    receipt = served.engine.swap(2, "", lineage="second")
    assert receipt.version == 2
    live = {name: served.engine.status(lineage=name).live_version for name in LINEAGES}
    assert live == {"": NO_DRAFTER, "second": 2, "third": NO_DRAFTER}
    assert served.engine.live_version == NO_DRAFTER
    served.engine.swap(None, "", lineage="second")
    assert served.engine.status(lineage="second").live_version == NO_DRAFTER


def test_versions_are_looked_up_in_the_folder_of_their_lineage(served: Served) -> None:
    with pytest.raises(CheckpointError, match="there is no drafter version 1 to load"):
        served.engine.swap(1, "", lineage="third")
    served.engine.load_resident(1, lineage="second")
    assert served.engine.is_resident(1, lineage="second")
    assert not served.engine.is_resident(1)
    with pytest.raises(BackendError, match="drafter version 1 is not resident"):
        served.engine.submit(request("a", PROMPTS[0], drafter=1), Outputs())
    [output] = generate(served.engine, [request("b", PROMPTS[0], drafter=1, lineage="second")])
    assert len(output) and served.engine.finished(0)[0].max_draft_version == 1


def test_a_lineage_that_is_not_there_is_refused(served: Served) -> None:
    with pytest.raises(BackendError, match="there is no lineage 'other' here; there are 'default'"):
        served.engine.swap(1, "", lineage="other")


def test_a_trace_goes_to_its_own_lineage_with_what_that_needs(served: Served) -> None:
    served.engine.swap(1, "", lineage="second")
    generate(
        served.engine, [request(name or "first", PROMPTS[0], lineage=name) for name in LINEAGES]
    )
    for name, features in (
        ("", {"last_hidden_state"}),
        ("second", {"aux_hidden_states", "last_hidden_state"}),
        ("third", set()),
    ):
        traces = served.traces(name)
        assert set(traces) == {name or "first"}
        [trace] = traces.values()
        assert set(trace.features) == features
        assert trace.aux_layers == ((1,) if name == "second" else ())


def test_a_drafter_that_fails_takes_down_no_other_lineage(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.engine.swap(1, "")
    served.engine.swap(1, "", lineage="second")
    [plain] = generate(served.engine, [request("a", PROMPTS[0], drafter="none")])
    drafter = served.engine._lineages["second"].residents.get(1)

    def fail(requests: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(drafter, "propose", fail)
    both = [request("b", PROMPTS[0]), request("c", PROMPTS[0], lineage="second")]
    assert generate(served.engine, both) == [plain, plain]
    assert served.engine.status().live_version == 1
    assert served.engine.status(lineage="second").live_version == NO_DRAFTER
