"""Every planted bug of a speculator is caught by the test of the suite that is named for it."""

from __future__ import annotations

import pytest

from aurora_core.interfaces import Speculator
from aurora_core.records import TargetSpec
from aurora_core.testing.suite_run import TestResult, run_suites
from aurora_core.testing.suites import SpeculatorSuite
from aurora_core.testing.toy_speculator import ToyOptions, ToySpeculator
from tests.conformance import broken_speculators as broken
from tests.conformance.toy_trees import LeakingTreeToy, PaddedTreeToy, TreeToy

MUTANTS: dict[type[ToySpeculator], set[str]] = {
    broken.PromptIsLearned: {"test_a_batch_that_supervises_nothing_is_zero"},
    broken.FirstTokenIsLost: {
        "test_the_first_token_that_can_be_drafted_is_learned",
        "test_every_row_that_begins_a_draft_matters",
        "test_as_many_positions_are_supervised_as_the_response_has",
    },
    broken.LastTokenIsLost: {
        "test_the_last_token_is_learned",
        "test_as_many_positions_are_supervised_as_the_response_has",
    },
    broken.TargetsAreNotShifted: {
        "test_the_served_drafter_is_right_where_replay_says_so",
        "test_the_first_token_that_can_be_drafted_is_learned",
    },
    broken.RowsAreTakenAsPositions: {"test_rows_may_come_in_any_order"},
    broken.PaddingIsCounted: {"test_a_batch_is_the_sum_of_its_traces"},
    broken.LossIsAMean: {"test_a_batch_is_the_sum_of_its_traces"},
    broken.EmptyBatchIsNan: {"test_a_batch_that_supervises_nothing_is_zero"},
    broken.NanIsLearned: {"test_values_that_are_not_finite_are_refused"},
    broken.BatchIsChanged: {"test_loss_leaves_batch_and_traces_as_they_are"},
    broken.VocabularyIsNotInTheModule: {
        "test_a_lineage_goes_on_from_its_state_dict_on_other_traffic"
    },
    broken.TargetIsTrained: {"test_training_lowers_the_loss_and_leaves_the_target_alone"},
    broken.WeightsAreShared: {"test_no_two_weights_share_their_storage"},
    broken.MissingTensorIsIgnored: {"test_a_missing_tensor_is_refused"},
    broken.ExtraTensorIsIgnored: {"test_an_extra_tensor_is_refused"},
    broken.AnyTargetIsTaken: {"test_a_checkpoint_of_another_target_is_refused"},
    broken.InfiniteWeightsAreTaken: {"test_a_tensor_that_is_not_finite_is_refused"},
    broken.VocabularyMapIsSwapped: {"test_what_is_loaded_is_what_was_saved"},
    broken.ReplayIsOptimistic: {"test_the_served_drafter_is_right_where_replay_says_so"},
    LeakingTreeToy: {"test_the_served_drafter_is_right_where_replay_says_so"},
    PaddedTreeToy: {"test_a_path_scores_the_same_whatever_grows_beside_it"},
    **{
        broken.with_drafter(drafter): tests
        for drafter, tests in {
            broken.DrafterDependsOnTheBatch: {
                "test_proposals_do_not_depend_on_what_shares_the_batch"
            },
            broken.DrafterRollsDice: {"test_proposals_are_deterministic"},
            broken.DrafterIgnoresItsLimit: {"test_depth_and_nodes_stay_within_their_limits"},
            broken.DrafterIgnoresTheNodeBudget: {"test_depth_and_nodes_stay_within_their_limits"},
            broken.DrafterForgetsNothing: {"test_a_forgotten_request_leaves_nothing_behind"},
            broken.DrafterSpeaksDraftIds: {"test_the_served_drafter_is_right_where_replay_says_so"},
            broken.DrafterIsOneRowLate: {
                "test_the_served_drafter_is_right_where_replay_says_so",
                "test_rows_in_parts_are_rows_at_once",
            },
            broken.DrafterSharesTheWeights: {"test_training_afterwards_does_not_change_a_drafter"},
            broken.DrafterWritesIntoFeatures: {"test_what_the_engine_gives_stays_as_it_is"},
            broken.DrafterPlaysSafe: {"test_a_request_may_begin_in_its_middle"},
            broken.DrafterIgnoresTraining: {
                "test_the_served_drafter_is_right_where_replay_says_so"
            },
        }.items()
    },
}
"""Bug -> tests that must fail for it."""


TREE_TESTS = {
    "test_proposals_are_well_formed",
    "test_depth_and_nodes_stay_within_their_limits",
    "test_some_node_has_two_children",
    "test_a_path_scores_the_same_whatever_grows_beside_it",
    "test_the_served_drafter_is_right_where_replay_says_so",
    "test_branches_do_not_see_each_other_in_training",
}


def suite_for(speculator_class: type[ToySpeculator]) -> type:
    class Suite(SpeculatorSuite):
        @pytest.fixture
        def speculator(self, target: TargetSpec) -> Speculator:
            return speculator_class(ToyOptions(), target)

        @pytest.fixture
        def overfit_learning_rate(self) -> float:
            return 3e-2

    return Suite


@pytest.fixture(scope="module")
def results() -> list[TestResult]:
    """The named tests of every mutant, and the same tests of the toy as it is."""
    named = {f"Test{mutant.__name__}": tests for mutant, tests in MUTANTS.items()}
    suites = {f"Test{mutant.__name__}": suite_for(mutant) for mutant in MUTANTS}
    assert len(suites) == len(MUTANTS)
    return run_suites(suites, select=lambda suite, test: test in named[suite])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_bug_is_caught(results: list[TestResult], mutant: type[ToySpeculator]) -> None:
    mine = [result for result in results if result.suite == f"Test{mutant.__name__}"]
    by_test: dict[str, list[str]] = {}
    for result in mine:
        by_test.setdefault(result.test.partition("[")[0], []).append(result.outcome)
    assert by_test.keys() == MUTANTS[mutant]
    missed = {test for test, outcomes in by_test.items() if "failed" not in outcomes}
    assert not missed, mutant.__doc__


def test_a_sound_toy_that_drafts_trees_passes() -> None:
    results = run_suites(
        {"TestTrees": suite_for(TreeToy)}, select=lambda suite, test: test in TREE_TESTS
    )
    assert {result.test for result in results} == TREE_TESTS
    assert [result for result in results if result.outcome != "passed"] == []


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 30
    assert all(mutant.__doc__ for mutant in MUTANTS)
