"""Every planted bug of a backend, a sink or a policy is caught by the test named for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aurora_core.interfaces import Options
from aurora_core.spool import SpoolOptions
from aurora_core.testing.fake_backend import FakeBackend, FakeBackendOptions
from aurora_core.testing.suite_run import TestResult, run_suites
from aurora_core.testing.suites import BackendSuite, SwapPolicySuite, TraceSinkSuite
from tests.conformance.broken_components import BACKENDS, MUTANTS, POLICIES, SINKS, SamplesSoundly


def suite_for(mutant: type) -> type:
    class Backends(BackendSuite):
        @pytest.fixture
        def backend(self) -> FakeBackend:
            return mutant(FakeBackendOptions(step_ms=0.0))

        @pytest.fixture
        def records_traces(self) -> bool:
            return False

        @pytest.fixture
        def num_sampled_answers(self) -> int:
            return 480

    class Sinks(TraceSinkSuite):
        @pytest.fixture
        def sink(self, tmp_path: Path) -> object:
            return mutant(SpoolOptions(path=tmp_path / "spool"))

    class Policies(SwapPolicySuite):
        @pytest.fixture
        def policy(self) -> object:
            return mutant(Options())

    return Backends if issubclass(mutant, FakeBackend) else Sinks if mutant in SINKS else Policies


@pytest.fixture(scope="module")
def results() -> list[TestResult]:
    """The named tests of every mutant."""
    named = {f"Test{mutant.__name__}": tests for mutant, tests in MUTANTS}
    suites = {f"Test{mutant.__name__}": suite_for(mutant) for mutant, _ in MUTANTS}
    return run_suites(suites, select=lambda suite, test: test in named[suite])


@pytest.mark.parametrize(("mutant", "tests"), MUTANTS, ids=[m.__name__ for m, _ in MUTANTS])
def test_the_bug_is_caught(results: list[TestResult], mutant: type, tests: set[str]) -> None:
    by_test: dict[str, list[str]] = {}
    for result in results:
        if result.suite == f"Test{mutant.__name__}":
            by_test.setdefault(result.test.partition("[")[0], []).append(result.outcome)
    assert by_test.keys() == tests
    missed = {test for test, outcomes in by_test.items() if "failed" not in outcomes}
    assert not missed, mutant.__doc__


def test_sound_sampling_of_drafts_passes() -> None:
    results = run_suites(
        {"TestSound": suite_for(SamplesSoundly)},
        select=lambda suite, test: test == "test_sampled_answers_come_from_the_same_distribution",
    )
    assert [result.outcome for result in results] == ["passed", "passed"]


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) == len(BACKENDS) + len(SINKS) + len(POLICIES) >= 20
    assert all(mutant.__doc__ for mutant, _ in MUTANTS)
