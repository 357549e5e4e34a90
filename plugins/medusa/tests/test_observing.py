"""What a drafter observes of finished requests, and the tree that follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import torch

from aurora_core.records import Trace
from aurora_core.target.weights import TargetWeights
from aurora_medusa.candidate_tree import chain, expected_accepted
from aurora_medusa.model import MedusaNetwork
from aurora_medusa.speculator import MedusaSpeculator
from plugins.medusa.tests.test_drafter import served

CPU = torch.device("cpu")
Make = Callable[..., MedusaSpeculator]


@pytest.fixture(scope="module")
def traces(make_trace: Callable[..., Trace]) -> list[Trace]:
    return [make_trace(seed, prompt_len=5 + 3 * seed, num_response=18) for seed in range(4)]


@pytest.fixture(scope="module")
def network(
    speculator: MedusaSpeculator,
    weights: TargetWeights,
    traces: list[Trace],
    train: Callable[..., MedusaNetwork],
) -> MedusaNetwork:
    """Heads that are right now and then."""
    fresh = speculator.build_module(weights, traces)
    return train(speculator, fresh, speculator.collate(traces), num_steps=25)


def test_a_drafter_that_observes_grows_the_tree_that_its_heads_deserve(
    make_speculator: Make, network: MedusaNetwork, traces: list[Trace]
) -> None:
    speculator = make_speculator(tree="adaptive")
    drafter = served(speculator, network)
    before = drafter.tree
    for _ in range(40):
        for trace in traces:
            drafter.observe(trace)
    after = drafter.tree
    assert after != before
    # Measure over all rows what the drafter has measured over some.
    accuracy = torch.zeros(3, 8)
    for trace in traces:
        for head in range(3):
            rows = torch.arange(trace.prompt_len - 1, len(trace.token_ids) - 2 - head)
            hidden = trace.features["last_hidden_state"][rows]
            logits = network.blocks[head](hidden) @ network.draft_head.T
            best = network.token_map[logits.topk(8).indices]
            hits = best == trace.token_ids[rows + 2 + head, None]
            accuracy[head] += hits.float().mean(0) / len(traces)
    exact = accuracy.tolist()
    assert expected_accepted(after[:8], exact) > expected_accepted(before[:8], exact)
    assert expected_accepted(after[:8], exact) > expected_accepted(chain(3), exact)


def test_equal_observations_give_equal_trees_and_old_ones_are_forgotten(
    make_speculator: Make, network: MedusaNetwork, traces: list[Trace]
) -> None:
    def grown(order: Sequence[int]) -> object:
        drafter = served(make_speculator(tree="adaptive"), network)
        for index in order:
            drafter.observe(traces[index])
        return drafter.tree

    assert grown([0, 1, 2, 3]) == grown([0, 1, 2, 3])
    assert grown([0] * 30) != grown([3] * 30)


def test_a_new_version_starts_from_the_tree_of_the_one_before(
    make_speculator: Make, network: MedusaNetwork, traces: list[Trace]
) -> None:
    speculator = make_speculator(tree="adaptive")
    first = served(speculator, network)
    untouched = first.tree
    first.observe(traces[0])
    second = served(speculator, network)
    assert second.tree == first.tree != untouched
    second.observe(traces[1])
    assert second.tree != first.tree


@pytest.mark.parametrize("tree", ["chain", "static"])
def test_other_trees_observe_nothing(
    make_speculator: Make, network: MedusaNetwork, traces: list[Trace], tree: str
) -> None:
    drafter = served(make_speculator(tree=tree), network)
    before = drafter.tree
    drafter.observe(traces[0])
    assert drafter.tree == before


def test_traces_that_show_nothing_are_passed_over(
    make_speculator: Make, network: MedusaNetwork, make_trace: Callable[..., Trace]
) -> None:
    drafter = served(make_speculator(tree="adaptive"), network)
    before = drafter.tree
    trace = make_trace(1, num_response=8)
    damaged = torch.full_like(trace.features["last_hidden_state"], float("nan"))
    for poor in (
        dataclasses.replace(trace, features={}),
        dataclasses.replace(trace, features={"last_hidden_state": damaged}),
        make_trace(1, num_response=1),
    ):
        drafter.observe(poor)
    assert drafter.tree == before
