"""Sampled drafts: a sound toy passes the kit, and every planted bug is caught by the named test."""

from __future__ import annotations

import pytest

from aurora_core.interfaces import Speculator
from aurora_core.records import TargetSpec
from aurora_core.testing.suite_run import TestResult, run_suites
from aurora_core.testing.suites import SpeculatorSuite
from aurora_core.testing.suites.speculator_sampling import SamplingPromises
from aurora_core.testing.toy_network import ToyDrafter
from aurora_core.testing.toy_speculator import ToyOptions
from tests.conformance.broken_sampling import BROKEN_SAMPLING, SampledToy

PROMISES = {name for name in vars(SamplingPromises) if name.startswith("test_")}


def suite_for(drafter: type[ToyDrafter], num_siblings: int) -> type:
    speculator_class = type(drafter.__name__, (SampledToy,), {"drafter_class": drafter})

    class Suite(SpeculatorSuite):
        @pytest.fixture
        def speculator(self, target: TargetSpec) -> Speculator:
            return speculator_class(ToyOptions(num_siblings=num_siblings), target)

    return Suite


@pytest.fixture(scope="module")
def results() -> list[TestResult]:
    """The named tests of every mutant, with two siblings, and all of the sound toys."""
    suites = {f"Test{mutant.__name__}": suite_for(mutant, 2) for mutant in BROKEN_SAMPLING}
    suites |= {"TestChains": suite_for(ToyDrafter, 1), "TestSiblings": suite_for(ToyDrafter, 3)}
    named = {f"Test{mutant.__name__}": tests for mutant, tests in BROKEN_SAMPLING.items()}
    return run_suites(suites, select=lambda suite, test: test in named.get(suite, PROMISES))


@pytest.mark.parametrize("mutant", BROKEN_SAMPLING, ids=lambda mutant: mutant.__name__)
def test_the_bug_is_caught(results: list[TestResult], mutant: type[ToyDrafter]) -> None:
    by_test: dict[str, list[str]] = {}
    for result in results:
        if result.suite == f"Test{mutant.__name__}":
            by_test.setdefault(result.test.partition("[")[0], []).append(result.outcome)
    assert by_test.keys() == BROKEN_SAMPLING[mutant]
    missed = {test for test, outcomes in by_test.items() if "failed" not in outcomes}
    assert not missed, mutant.__doc__


@pytest.mark.parametrize("suite", ["TestChains", "TestSiblings"])
def test_a_sound_toy_passes(results: list[TestResult], suite: str) -> None:
    mine = [result for result in results if result.suite == suite]
    assert {result.test.partition("[")[0] for result in mine} == PROMISES
    assert [result for result in mine if result.outcome != "passed"] == []
