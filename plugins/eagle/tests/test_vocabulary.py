"""The draft vocabulary: choice, map, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aurora_core.records import Rows, Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.traces import make_trace as make_random_trace
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


def test_tokens_that_occur_come_before_low_ids_and_those_of_responses_first() -> None:
    trace = make_random_trace(0, vocab_size=40, prompt_len=4, num_steps=3, version=-1, features=())
    trace.token_ids[:] = torch.tensor([30, 31, 30, 32, 20, 21, 20])

    def choose(size: int) -> list[int]:
        head = torch.zeros(40, 8)
        return vocabulary.choose_target_ids([trace], head, size=size, vocab_size=40).tolist()

    assert choose(1) == [20]
    assert choose(2) == [20, 21]
    assert choose(3) == [20, 21, 30]
    assert choose(8) == [0, 1, 2, 20, 21, 30, 31, 32]
    assert choose(99) == list(range(40))


def test_tokens_that_the_target_expected_are_chosen_though_they_did_not_occur() -> None:
    trace = make_random_trace(
        0, vocab_size=40, hidden_size=2, prompt_len=4, num_steps=3, version=-1
    )
    trace.token_ids[:] = 5
    hidden = trace.features["last_hidden_state"]
    # Rows 0 to 2 read the prompt; the row at its end and those after it expect the response.
    hidden[:] = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 3)
    head = torch.zeros(40, 2)
    head[33, 0] = head[35, 1] = 9.0

    def choose(size: int) -> list[int]:
        return vocabulary.choose_target_ids([trace], head, size=size, vocab_size=40).tolist()

    assert choose(1) == [5]
    assert choose(2) == [5, 35]
    assert choose(3) == [5, 33, 35]
    rejected = dataclasses.replace(
        trace,
        rows=Rows(position=torch.tensor([0, 1, 2, -1, -1, -1]), node=trace.rows.node.clamp(min=0)),
    )
    assert vocabulary.choose_target_ids([rejected], head, size=2, vocab_size=40).tolist() == [5, 33]


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
