"""What rows weigh, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from aurora_eagle import weights
from aurora_eagle.losses import unlikelihood

# A tree of five rejected nodes: 0 - 1 - 3 below one committed token, 2 - 4 below another.
PARENT = torch.tensor([-1, 0, -1, 1, 2])


def test_fixed_depth_weights_are_powers() -> None:
    expected = torch.tensor([1.0, 0.5, 0.25])
    torch.testing.assert_close(weights.fixed_depth_weights(3, 0.5), expected)


def test_reach_is_the_share_of_a_traces_anchors_whose_earlier_drafts_were_all_right() -> None:
    right = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
    judged = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1], [1, 1, 0, 0]], dtype=torch.bool)
    # Position 1 is reached by 3 of 4; position 2 by the first alone of the 3 that are judged.
    alone = weights.reach_depth_weights(right, judged, torch.zeros(4, dtype=torch.int64), 1)
    torch.testing.assert_close(alone, torch.tensor([[1.0], [3 / 4], [1 / 3]]))
    two = weights.reach_depth_weights(right, judged, torch.tensor([1, 1, 0, 0]), 2)
    least = weights.LEAST_DEPTH_WEIGHT
    torch.testing.assert_close(two, torch.tensor([[1.0, 1.0], [1 / 2, 1.0], [least, 1 / 2]]))


def test_a_position_that_was_never_reached_still_learns() -> None:
    nothing, trace = torch.zeros(3, 5, dtype=torch.bool), torch.zeros(5, dtype=torch.int64)
    least = weights.LEAST_DEPTH_WEIGHT
    expected = torch.tensor([[1.0, 1.0], [least, least], [least, least]])
    assert torch.equal(weights.reach_depth_weights(nothing, ~nothing, trace, 2), expected)
    assert torch.equal(weights.reach_depth_weights(nothing, nothing, trace, 2), expected)


def test_discarded_rows_together_weigh_lambda_times_all_committed_ones() -> None:
    rejected = torch.tensor([1.0, 0.5, 0.0, 0.5])
    found = weights.discard_weights(rejected, torch.tensor(30.0), 0.1)
    torch.testing.assert_close(found, torch.tensor([1.5, 0.75, 0.0, 0.75]))


def test_without_discarded_rows_nothing_is_added() -> None:
    found = weights.discard_weights(torch.zeros(3), torch.tensor(30.0), 0.1)
    assert torch.equal(found, torch.zeros(3))


def test_reach_multiplies_the_targets_probabilities_down_each_branch() -> None:
    log_prob = torch.tensor([0.5, 0.2, 0.1, 0.5, 0.0]).log()
    expected = torch.tensor([0.5, 0.1, 0.1, 0.05, 0.0])
    torch.testing.assert_close(weights.reach_of(log_prob, PARENT), expected)


@pytest.mark.parametrize(
    ("floor", "expected"), [(0.0, [0.5, 0.08, 0.0]), (0.1, [0.5, 0.08, 0.05]), (1.0, [1, 0.8, 0.5])]
)
def test_branch_weights_do_not_fall_below_the_floor(floor: float, expected: list[float]) -> None:
    by_depth, reach = torch.tensor([1.0, 0.8, 0.5]), torch.tensor([0.5, 0.1, 0.0])
    found = weights.branch_weights(by_depth, reach, floor)
    torch.testing.assert_close(found, torch.tensor(expected))


def test_ratios_multiply_down_each_branch_and_are_cut_from_above() -> None:
    now = torch.tensor([0.2, 0.9, 0.1, 0.3, 0.5]).log()
    then = torch.tensor([0.4, 0.6, 0.2, 0.1, math.nan]).log()
    # 1/2, 1/2 * 3/2, 1/2, 1/2 * 3/2 * 3 cut to 2, and 1/2 times what is not known.
    expected = torch.tensor([0.5, 0.75, 0.5, 2.0, 0.5])
    torch.testing.assert_close(weights.clipped_ratios(now, then, PARENT, 2.0), expected)


def test_a_node_that_cannot_be_drafted_any_more_weighs_nothing() -> None:
    now, then = torch.tensor([float("-inf")]), torch.tensor([-1.0])
    assert weights.clipped_ratios(now, then, torch.tensor([-1]), 1.0).item() == 0.0


def test_unlikelihood_of_two_refused_tokens_by_hand() -> None:
    draft_probs = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    refused = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    loss = unlikelihood(draft_probs.log(), refused)
    assert loss.value.item() == pytest.approx(-math.log(0.75) - math.log(0.875))
    # odds are 1/3 and 1/7, together 10/21: odds - draft_probs * 10/21.
    expected = [-0.5 * 10 / 21, 1 / 3 - 0.25 * 10 / 21, 1 / 7 - 0.125 * 10 / 21, -0.125 * 10 / 21]
    assert loss.gradient[0].tolist() == pytest.approx(expected)


def test_unlikelihood_of_a_certain_draft_is_finite() -> None:
    loss = unlikelihood(torch.tensor([[200.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    assert torch.isfinite(loss.value).all()
    assert torch.isfinite(loss.gradient).all()
