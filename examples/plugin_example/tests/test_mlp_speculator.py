"""What is this speculator's own; the rest is in the conformance suite."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aurora_core.errors import CheckpointError, TraceError
from aurora_core.interfaces import DraftRequest
from aurora_core.records import TargetSpec
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.testing.traces import make_trace
from aurora_mlp_speculator.network import MlpNetwork
from aurora_mlp_speculator.speculator import FEATURE, MlpOptions, MlpSpeculator


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetSpec:
    return read_target_spec(make_tiny_target(tmp_path_factory.mktemp("target")), name="tiny")


@pytest.fixture(scope="module")
def weights(target: TargetSpec) -> TargetWeights:
    return TargetWeights(target)


@pytest.fixture
def speculator(target: TargetSpec) -> MlpSpeculator:
    return MlpSpeculator(MlpOptions(draft_vocab_size=32, min_confidence=0.0), target)


@pytest.fixture
def traces(target: TargetSpec) -> list:
    shape = {"vocab_size": target.vocab_size, "hidden_size": target.hidden_size}
    return [make_trace(seed, **shape, features=[FEATURE]) for seed in range(3)]


@pytest.fixture
def network(speculator: MlpSpeculator, weights: TargetWeights, traces: list) -> MlpNetwork:
    torch.manual_seed(0)
    network = speculator.build_module(weights, traces)
    assert isinstance(network, MlpNetwork)
    return network


def request(target: TargetSpec, *, depth: int, max_nodes: int) -> DraftRequest:
    generator = torch.Generator().manual_seed(1)
    return DraftRequest(
        request_id="request",
        start=0,
        token_ids=torch.tensor([5, 6, 7]),
        features={FEATURE: torch.randn(2, target.hidden_size, generator=generator)},
        num_speculative_tokens=depth,
        max_nodes=max_nodes,
    )


def drafter(speculator: MlpSpeculator, network: MlpNetwork):
    return speculator.drafter(network, dtype=torch.float32, device=torch.device("cpu"))


def test_the_most_frequent_tokens_of_the_answers_can_be_drafted(
    speculator, weights, traces, network
):
    answers = torch.cat([trace.token_ids[trace.prompt_len :] for trace in traces])
    counts = torch.bincount(answers, minlength=weights.vocab_size)
    chosen = network.target_ids
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    others = torch.ones_like(counts, dtype=torch.bool)
    others[chosen] = False
    assert counts[chosen].min() >= counts[others].max()
    assert torch.equal(network.lm_head.weight, weights.lm_head[chosen].float())


@pytest.mark.parametrize(
    ("depth", "max_nodes", "expected"), [(9, 9, 3), (2, 9, 2), (9, 1, 1), (0, 9, 0)]
)
def test_a_chain_ends_at_the_last_layer_and_at_the_limits_of_its_request(
    speculator, network, target, depth, max_nodes, expected
):
    one = request(target, depth=depth, max_nodes=max_nodes)
    [proposal] = drafter(speculator, network).propose([one])
    assert len(proposal.token_ids) == len(proposal.log_probs) == expected
    assert set(proposal.token_ids) <= set(network.target_ids.tolist())


def test_a_chain_ends_where_its_probability_falls(target, network):
    careful = MlpSpeculator(MlpOptions(draft_vocab_size=32, min_confidence=0.99), target)
    [proposal] = drafter(careful, network).propose([request(target, depth=3, max_nodes=3)])
    assert len(proposal.token_ids) == 1
    assert proposal.log_probs[0] < math.log(0.99)


def test_an_anchor_needs_its_row_a_place_in_the_answer_and_a_token_after_it(speculator, traces):
    trace = traces[0]
    batch = speculator.collate([trace])
    anchors = list(range(trace.prompt_len, len(trace.token_ids) - 1))
    assert batch["token_ids"][:, 0].tolist() == trace.token_ids[anchors].tolist()
    before = [anchor - 1 for anchor in anchors]
    assert torch.equal(batch["hidden"], trace.features[FEATURE][before].float())
    assert batch["token_ids"][-1].tolist() == [*trace.token_ids[-2:].tolist(), -1, -1]


def test_a_trace_of_another_target_is_refused(speculator, traces):
    odd = replace(traces[0], features={FEATURE: traces[0].features[FEATURE][:, :3]})
    with pytest.raises(TraceError, match="lacks the feature 'last_hidden_state' of"):
        speculator.collate([odd])


def test_a_checkpoint_says_what_is_wrong_with_it(
    speculator, network, weights, target, tmp_path: Path
):
    speculator.save(network, tmp_path)
    other = MlpSpeculator(speculator.options, replace(target, fingerprint="another"))
    with pytest.raises(CheckpointError, match="expected 'mlp-speculator' for 'another'"):
        other.load(tmp_path, weights)
    network.norm.data[0] = math.nan
    speculator.save(network, tmp_path)
    with pytest.raises(CheckpointError, match="tensor 'norm' holds values that are not finite"):
        speculator.load(tmp_path, weights)
