"""The draft vocabulary: choice, map, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aurora_core.records import Trace
from aurora_core.target.weights import TargetWeights
from aurora_eagle import vocabulary
from aurora_eagle.speculator import Eagle3Speculator


@given(st.sets(st.integers(0, 499), min_size=1, max_size=80))
def test_any_choice_of_ids_survives_as_offsets(chosen: set[int]) -> None:
    target_ids = torch.tensor(sorted(chosen))
    offsets = vocabulary.to_offsets(target_ids)
    membership = vocabulary.to_membership(target_ids, 500)
    assert vocabulary.find_fault(offsets, membership) is None
    assert torch.equal(offsets + torch.arange(len(offsets)), target_ids)
    assert int(membership.sum()) == len(offsets)
    indices = vocabulary.draft_indices(offsets, 500)
    assert torch.equal(indices[target_ids], torch.arange(len(target_ids)))
    assert int((indices < 0).sum()) == 500 - len(chosen)


def test_few_unique_tokens_are_filled_up_to_the_size(
    make_speculator: Callable[..., Eagle3Speculator], weights: TargetWeights
) -> None:
    network = make_speculator(draft_vocab_size=96).build_module(weights, [])
    assert network.target_ids.tolist() == list(range(96))
    assert network.lm_head.weight.shape[0] == 96


def test_the_map_of_a_lineage_survives_a_resume_on_other_traffic(
    speculator: Eagle3Speculator, weights: TargetWeights, make_trace: Callable[..., Trace]
) -> None:
    first = speculator.build_module(weights, [make_trace(1)])
    resumed = speculator.build_module(weights, [make_trace(2), make_trace(3)])
    assert not torch.equal(first.d2t, resumed.d2t)
    resumed.load_state_dict(first.state_dict())
    assert torch.equal(resumed.d2t, first.d2t)
    assert torch.equal(resumed.t2d, first.t2d)
    batch = speculator.collate([make_trace(4)])
    losses = [speculator.loss(network, batch).loss_sum.item() for network in (first, resumed)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("target_ids", "fault"),
    [
        ([3, 9, 40], "ids outside 0 to 39"),
        ([-1, 9, 12], "ids outside 0 to 39"),
        ([3, 3, 12], "do not increase"),
        ([9, 3, 12], "do not increase"),
    ],
)
def test_a_broken_offset_map_is_found(target_ids: list[int], fault: str) -> None:
    offsets = torch.tensor(target_ids) - torch.arange(3)
    found = vocabulary.find_fault(offsets, vocabulary.to_membership(torch.tensor([3, 9, 12]), 40))
    assert found is not None
    assert fault in found


def test_ids_stored_in_place_of_offsets_are_found() -> None:
    target_ids = torch.tensor([3, 9, 12])
    membership = vocabulary.to_membership(target_ids, 40)
    assert "t2d does not mark" in (vocabulary.find_fault(target_ids, membership) or "")
