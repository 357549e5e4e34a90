"""The serving drafter: batches, limits, shapes, and what it has learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_core.records import Trace
from aurora_core.target.weights import TargetWeights
from aurora_medusa.drafter import MedusaDrafter
from aurora_medusa.model import MedusaNetwork
from aurora_medusa.speculator import MedusaSpeculator

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


def ask(
    trace: Trace, root: int, *, start: int = 0, depth: int = 3, nodes: int | None = None
) -> DraftRequest:
    return DraftRequest(
        request_id=trace.trace_id,
        start=start,
        token_ids=trace.token_ids[start : root + 1],
        features={name: rows[start:root] for name, rows in trace.features.items()},
        num_speculative_tokens=depth,
        max_nodes=depth if nodes is None else nodes,
    )


def served(
    speculator: MedusaSpeculator, network: torch.nn.Module, dtype: torch.dtype = torch.float32
) -> MedusaDrafter:
    drafter = speculator.drafter(network, dtype=dtype, device=CPU)
    assert isinstance(drafter, MedusaDrafter)
    return drafter


def accepted_tokens(proposal: Proposal, committed: Sequence[int]) -> int:
    """Return the depth of the deepest node whose whole path was committed."""
    deepest, depth_of = 0, {-1: 0}
    for node, (token, parent) in enumerate(zip(proposal.token_ids, proposal.parents, strict=True)):
        if parent in depth_of and committed[depth_of[parent]] == token:
            depth_of[node] = depth_of[parent] + 1
            deepest = max(deepest, depth_of[node])
    return deepest


@pytest.mark.parametrize("tree", ["chain", "static", "adaptive"])
@pytest.mark.parametrize("own_heads", [False, True])
def test_proposals_are_the_same_to_the_bit_whatever_shares_the_batch(
    make_speculator: Make, weights: TargetWeights, traces: list[Trace], tree: str, own_heads: bool
) -> None:
    speculator = make_speculator(tree=tree, own_heads=own_heads)
    network = speculator.build_module(weights, traces)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    drafter = served(speculator, network, torch.bfloat16)
    requests = [
        ask(trace, root, depth=1 + index % 3, nodes=2 + 3 * index)
        for index, (trace, root) in enumerate(zip(traces, (9, 10, 14, 20), strict=True))
    ]
    together = drafter.propose(requests)
    assert [drafter.propose([request])[0] for request in requests] == together
    assert drafter.propose(requests[::-1]) == together[::-1]


@pytest.mark.parametrize("depth", [1, 2, 3, 9])
@pytest.mark.parametrize("nodes", [1, 4, 8, 50])
@pytest.mark.parametrize("tree", ["chain", "static", "adaptive"])
def test_proposals_keep_to_their_limits_and_put_parents_first(
    make_speculator: Make,
    network: MedusaNetwork,
    traces: list[Trace],
    tree: str,
    depth: int,
    nodes: int,
) -> None:
    drafter = served(make_speculator(tree=tree, tree_nodes=12), network)
    (proposal,) = drafter.propose([ask(traces[0], 9, depth=depth, nodes=nodes)])
    depths: list[int] = []
    for index, parent in enumerate(proposal.parents):
        assert -1 <= parent < index
        depths.append(1 if parent < 0 else depths[parent] + 1)
    assert max(depths) <= min(depth, 3)
    assert len(proposal.log_probs) == len(proposal.token_ids) == len(depths)
    if tree == "chain":
        assert len(depths) == min(depth, nodes, 3)
    elif depth > 1:
        assert len(depths) == min(nodes, 12)
    siblings = list(zip(proposal.parents, proposal.token_ids, strict=True))
    assert len(set(siblings)) == len(siblings)
    assert all(value <= 0.0 for value in proposal.log_probs)


def test_nothing_new_and_nothing_wanted_give_no_draft(
    speculator: MedusaSpeculator, network: MedusaNetwork, traces: list[Trace]
) -> None:
    drafter = served(speculator, network)
    nothing = Proposal(token_ids=(), parents=(), log_probs=())
    requests = [
        ask(traces[0], 9, depth=0),
        ask(traces[1], 9, start=9),
        ask(traces[2], 12),
        ask(traces[3], 14, nodes=0),
    ]
    proposals = drafter.propose(requests)
    assert [proposals[index] for index in (0, 1, 3)] == [nothing] * 3
    assert [proposals[2]] == drafter.propose([requests[2]])
    assert proposals[2].token_ids
    assert drafter.propose([]) == []


def test_only_the_last_row_matters(
    speculator: MedusaSpeculator, network: MedusaNetwork, traces: list[Trace]
) -> None:
    drafter = served(speculator, network)
    whole = drafter.propose([ask(traces[0], 15)])
    drafter.forget(traces[0].trace_id)
    assert drafter.propose([ask(traces[0], 15, start=14)]) == whole
    assert drafter.propose([ask(traces[0], 15, start=8)]) == whole
    drafter.forget("never seen")


@pytest.mark.parametrize("own_heads", [False, True])
def test_the_served_draft_is_the_trainers_own_prediction(
    make_speculator: Make, weights: TargetWeights, traces: list[Trace], own_heads: bool
) -> None:
    speculator = make_speculator(tree="static", own_heads=own_heads, num_blocks=2)
    network = speculator.build_module(weights, traces)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    drafter = served(speculator, network)
    for trace in traces:
        for root in range(trace.prompt_len, len(trace.token_ids)):
            hidden = trace.features["last_hidden_state"][root - 1]
            (proposal,) = drafter.propose([ask(trace, root, nodes=12)])
            depths: list[int] = []
            used: dict[int, int] = {}
            rows = zip(proposal.token_ids, proposal.parents, proposal.log_probs, strict=True)
            for token, parent, log_prob in rows:
                depth = 1 if parent < 0 else depths[parent] + 1
                depths.append(depth)
                logits = network.output_heads[depth - 1] @ network.blocks[depth - 1](hidden)
                ranked = logits.argsort(descending=True)
                if parent < 0:
                    rank = used.setdefault(parent, 0)
                    used[parent] += 1
                    assert token == int(network.token_map[ranked[rank]])
                place = (network.token_map == token).nonzero()
                expected = logits.log_softmax(-1)[place].item()
                assert log_prob == pytest.approx(expected, abs=1e-4)


def test_replay_counts_what_the_chain_would_have_had_accepted(
    make_speculator: Make, network: MedusaNetwork, traces: list[Trace]
) -> None:
    speculator = make_speculator(tree="chain")
    accepted, anchors = speculator.acceptance(network, speculator.collate(traces), 4)
    drafter = served(speculator, network)
    expected = torch.zeros_like(accepted)
    for index, trace in enumerate(traces):
        for root in range(trace.prompt_len, len(trace.token_ids) - 4):
            (proposal,) = drafter.propose([ask(trace, root)])
            expected[index, : accepted_tokens(proposal, trace.token_ids[root + 1 :].tolist())] += 1
    assert anchors.tolist() == [18 - 4] * 4
    assert accepted.tolist() == expected.tolist()
    # There are three heads: a fourth token is never drafted.
    assert 0 < int(accepted[:, 2].sum()) < int(accepted[:, 0].sum()) < int(anchors.sum())
    assert not accepted[:, 3].any()


@pytest.mark.parametrize("tree", ["chain", "static", "adaptive"])
@pytest.mark.parametrize("own_heads", [False, True])
def test_an_overfitted_trace_is_accepted_whole(
    make_speculator: Make,
    weights: TargetWeights,
    make_trace: Callable[..., Trace],
    train: Callable[..., MedusaNetwork],
    tree: str,
    own_heads: bool,
) -> None:
    trace = make_trace(12, num_response=24)
    speculator = make_speculator(tree=tree, own_heads=own_heads, greedy_teacher="argmax")
    batch = speculator.collate([trace])
    network = train(speculator, speculator.build_module(weights, [trace]), batch, num_steps=150)
    accepted, anchors = speculator.acceptance(network, batch, 3)
    # 24 response tokens: the first is no draft, and the last three begin no draft of three.
    assert anchors.tolist() == [24 - 3]
    assert accepted.tolist() == [[21, 21, 21]]

    drafter = served(speculator, network)
    tokens = trace.token_ids.tolist()
    for root in range(trace.prompt_len, len(tokens) - 3):
        (proposal,) = drafter.propose([ask(trace, root, nodes=8)])
        assert accepted_tokens(proposal, tokens[root + 1 :]) == 3


def test_an_unlikely_chain_is_not_extended(
    make_speculator: Make, network: MedusaNetwork, traces: list[Trace]
) -> None:
    requests = [ask(trace, root) for trace in traces for root in (trace.prompt_len, 18)]
    whole = served(make_speculator(tree="chain"), network).propose(requests)
    assert {len(proposal.token_ids) for proposal in whole} == {3}
    reach = torch.tensor([proposal.log_probs for proposal in whole]).cumsum(1).exp()
    limit = float(reach[:, 1].median())
    careful = served(make_speculator(tree="chain", min_reach=limit), network).propose(requests)
    assert {1, 2} <= {len(proposal.token_ids) for proposal in careful}
    for short, full, chances in zip(careful, whole, reach, strict=True):
        length = max(1, int((chances >= limit).sum()))
        assert short.token_ids == full.token_ids[:length]


def test_training_afterwards_does_not_change_a_drafter(
    make_speculator: Make, weights: TargetWeights, traces: list[Trace]
) -> None:
    for own_heads in (False, True):
        speculator = make_speculator(own_heads=own_heads)
        trained = speculator.build_module(weights, traces)
        drafter: Drafter = speculator.drafter(trained, dtype=torch.float32, device=CPU)
        before = drafter.propose([ask(traces[0], 12)])
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.normal_()
        assert drafter.propose([ask(traces[0], 12)]) == before


def test_a_tiny_draft_vocabulary_limits_the_ranks(
    make_speculator: Make, weights: TargetWeights, traces: list[Trace]
) -> None:
    speculator = make_speculator(draft_vocab_size=8, tree="static", num_heads=1, tree_nodes=64)
    drafter = served(speculator, speculator.build_module(weights, traces))
    (proposal,) = drafter.propose([ask(traces[0], 12, nodes=64)])
    assert len(set(proposal.token_ids)) == len(proposal.token_ids) == 8
