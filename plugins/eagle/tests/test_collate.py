"""Traces that cannot be learned from are refused in one sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from aurora_core.errors import TraceError
from aurora_core.records import Rows, Sampling, Trace
from aurora_eagle.speculator import Eagle3Speculator


@pytest.fixture
def trace(make_trace: Callable[..., Trace]) -> Trace:
    return make_trace(1)


@pytest.mark.parametrize("name", ["aux_hidden_states", "last_hidden_state", "target_logsumexp"])
def test_a_missing_feature_is_named(speculator: Eagle3Speculator, trace: Trace, name: str) -> None:
    features = {key: tensor for key, tensor in trace.features.items() if key != name}
    with pytest.raises(TraceError, match=f"lacks the feature '{name}'"):
        speculator.collate([dataclasses.replace(trace, features=features)])


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("name", ["aux_hidden_states", "last_hidden_state", "target_logsumexp"])
def test_values_that_are_not_finite_are_refused(
    speculator: Eagle3Speculator, trace: Trace, name: str, value: float
) -> None:
    damaged = trace.features[name].clone()
    damaged[10] = value
    features = {**trace.features, name: damaged}
    with pytest.raises(TraceError, match=f"values in '{name}' that are not finite"):
        speculator.collate([dataclasses.replace(trace, features=features)])


def test_a_feature_that_does_not_fit_its_rows_is_refused(
    speculator: Eagle3Speculator, trace: Trace
) -> None:
    features = {**trace.features, "last_hidden_state": torch.zeros(3, 32)}
    with pytest.raises(TraceError, match=r"'last_hidden_state' of shape \[3, 32\], expected \[26"):
        speculator.collate([dataclasses.replace(trace, features=features)])


def test_hidden_states_of_other_layers_are_refused(
    speculator: Eagle3Speculator, trace: Trace
) -> None:
    with pytest.raises(TraceError, match=r"of layers \[0, 1, 2\], expected \[1, 2, 3\]"):
        speculator.collate([dataclasses.replace(trace, aux_layers=(0, 1, 2))])


def test_a_trace_of_another_target_is_refused(speculator: Eagle3Speculator, trace: Trace) -> None:
    with pytest.raises(TraceError, match="was made by another target than 'tiny'"):
        speculator.collate([dataclasses.replace(trace, target_fingerprint="another")])


def test_two_rows_at_one_position_are_refused(speculator: Eagle3Speculator, trace: Trace) -> None:
    position = trace.rows.position.clone()
    position[4] = 5
    rows = Rows(position=position, node=trace.rows.node)
    with pytest.raises(TraceError, match="has two rows at one position"):
        speculator.collate([dataclasses.replace(trace, rows=rows)])


def test_the_order_of_rows_does_not_matter(speculator: Eagle3Speculator, trace: Trace) -> None:
    order = torch.randperm(len(trace.rows.position), generator=torch.Generator().manual_seed(0))
    shuffled = dataclasses.replace(
        trace,
        rows=Rows(position=trace.rows.position[order], node=trace.rows.node[order]),
        features={name: tensor[order] for name, tensor in trace.features.items()},
    )
    expected = speculator.collate([trace])
    for name, tensor in speculator.collate([shuffled]).items():
        assert torch.equal(tensor, expected[name]), name


def test_rows_of_rejected_drafts_and_of_the_last_token_take_no_part(
    speculator: Eagle3Speculator, trace: Trace
) -> None:
    def longer(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat((tensor, torch.ones_like(tensor[:2])))

    last = len(trace.token_ids) - 1
    more = dataclasses.replace(
        trace,
        rows=Rows(
            position=torch.cat((trace.rows.position, torch.tensor([last, -1]))),
            node=torch.cat((trace.rows.node, torch.tensor([-1, 0]))),
        ),
        features={name: longer(tensor) for name, tensor in trace.features.items()},
    )
    expected = speculator.collate([trace])
    for name, tensor in speculator.collate([more]).items():
        assert torch.equal(tensor, expected[name]), name


def test_of_a_long_trace_the_last_positions_are_used(
    make_speculator: Callable[..., Eagle3Speculator], make_trace: Callable[..., Trace]
) -> None:
    batch = make_speculator(max_trace_tokens=16).collate([make_trace(2, num_response=30)])
    assert batch["row_position"].tolist() == list(range(37 - 16, 36))


def test_requests_verified_greedily_count_as_greedy(
    speculator: Eagle3Speculator, make_trace: Callable[..., Trace]
) -> None:
    traces = [
        make_trace(1, num_response=3, sampling=Sampling(temperature=0.7, rule=rule))
        for rule in ("point_mass", "greedy_always")
    ]
    torch.testing.assert_close(speculator.collate(traces)["temperature"], torch.tensor([0.7, 0.0]))
