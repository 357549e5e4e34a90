"""The serving drafter: caches, batches, limits, and what it has learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_core.records import Sampling, Trace
from aurora_core.target.weights import TargetWeights
from aurora_eagle.model import Eagle3Network
from aurora_eagle.speculator import Eagle3Speculator

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def traces(make_trace: Callable[..., Trace]) -> list[Trace]:
    return [make_trace(seed, prompt_len=5 + 3 * seed, num_response=18) for seed in range(4)]


@pytest.fixture(scope="module")
def network(
    speculator: Eagle3Speculator, weights: TargetWeights, traces: list[Trace]
) -> Eagle3Network:
    torch.manual_seed(0)
    return speculator.build_module(weights, traces)  # type: ignore[return-value]


@pytest.fixture
def drafter(speculator: Eagle3Speculator, network: Eagle3Network) -> Drafter:
    return speculator.drafter(network, dtype=torch.bfloat16, device=CPU)


def ask(trace: Trace, start: int, root: int, depth: int = 3) -> DraftRequest:
    return DraftRequest(
        request_id=trace.trace_id,
        start=start,
        token_ids=trace.token_ids[start : root + 1],
        features={"aux_hidden_states": trace.features["aux_hidden_states"][start:root]},
        num_speculative_tokens=depth,
        max_nodes=depth,
    )


def test_proposals_are_the_same_to_the_bit_whatever_shares_the_batch(
    speculator: Eagle3Speculator, network: Eagle3Network, traces: list[Trace]
) -> None:
    schedule = [[0, 8, 9, 12, 14], [0, 11, 12, 13, 17], [0, 15, 19, 20, 21], [0, 14, 16, 19, 22]]

    def draft(chosen: list[int], *, depth: int) -> dict[int, list[Proposal]]:
        drafter = speculator.drafter(network, dtype=torch.bfloat16, device=CPU)
        proposals: dict[int, list[Proposal]] = {index: [] for index in chosen}
        for turn in range(4):
            requests = [
                ask(traces[index], schedule[index][turn], schedule[index][turn + 1], depth + index)
                for index in chosen
            ]
            for index, proposal in zip(chosen, drafter.propose(requests), strict=True):
                proposals[index].append(proposal)
        return proposals

    together = draft([0, 1, 2, 3], depth=2)
    assert [len(turns[0].token_ids) for turns in together.values()] == [2, 3, 4, 5]
    for index in range(4):
        assert draft([index], depth=2)[index] == together[index]
    assert draft([3, 1], depth=2) == {index: together[index] for index in (3, 1)}


def test_sampled_drafts_follow_the_drafters_own_distribution_and_greedy_ones_stay(
    speculator: Eagle3Speculator, network: Eagle3Network, traces: list[Trace]
) -> None:
    drafter = speculator.drafter(network, dtype=torch.float32, device=CPU)
    sampling = Sampling(temperature=1.5, top_k=5)
    greedy, other = ask(traces[0], 0, 8), ask(traces[1], 0, 9)
    alone = drafter.propose([greedy])[0]
    drawn: list[int] = []
    for number in range(200):
        for request in (greedy, other):
            drafter.forget(request.request_id)
        uniforms = [(number + 0.5) / 200, 0.3, 0.9]
        sampled = replace(other, sampling=sampling, uniforms=uniforms)
        kept, proposal = drafter.propose([greedy, sampled])
        assert kept == alone and kept.drawn_from is None
        assert proposal.drawn_from is not None
        support, probs = proposal.drawn_from.token_ids, proposal.drawn_from.probs
        assert probs.shape == (len(proposal.token_ids), len(support))
        torch.testing.assert_close(probs.sum(1), torch.ones(len(probs)))
        assert ((probs > 0).sum(1) == 5).all()
        for token, row in zip(proposal.token_ids, probs, strict=True):
            assert row[support == token] > 0
        drawn.append(proposal.token_ids[0])
    shares = torch.stack([(torch.tensor(drawn) == token).float().mean() for token in support])
    assert (shares - probs[0]).abs().max() <= 1 / 200 + 1e-6


def test_rows_that_the_drafter_fed_itself_are_forgotten(
    drafter: Drafter, traces: list[Trace]
) -> None:
    trace = traces[0]
    # Deep drafts fill the cache behind the true rows; the next rows must overwrite them.
    drafter.propose([ask(trace, 0, 7, depth=8)])
    drafter.propose([ask(trace, 7, 10, depth=8)])
    (after_drafts,) = drafter.propose([ask(trace, 10, 15, depth=4)])
    drafter.forget(trace.trace_id)
    (fresh,) = drafter.propose([ask(trace, 0, 15, depth=4)])
    assert after_drafts == fresh


def test_rows_can_be_taken_in_without_drafting(drafter: Drafter, traces: list[Trace]) -> None:
    trace = traces[1]
    for start, root in ((0, 6), (6, 9)):
        (nothing,) = drafter.propose([ask(trace, start, root, depth=0)])
        assert not nothing.token_ids
    (in_parts,) = drafter.propose([ask(trace, 9, 14)])
    drafter.forget(trace.trace_id)
    assert drafter.propose([ask(trace, 0, 14)]) == [in_parts]


def test_a_drafter_that_joins_in_mid_request_uses_the_window_it_is_given(
    drafter: Drafter, traces: list[Trace]
) -> None:
    (whole,) = drafter.propose([ask(traces[2], 0, 20)])
    drafter.forget(traces[2].trace_id)
    (window,) = drafter.propose([ask(traces[2], 14, 20)])
    assert len(window.token_ids) == 3
    assert window != whole


def test_a_drafter_that_missed_rows_starts_again_from_those_given(
    drafter: Drafter, traces: list[Trace]
) -> None:
    (window,) = drafter.propose([ask(traces[2], 14, 20)])
    drafter.forget(traces[2].trace_id)
    drafter.propose([ask(traces[2], 0, 9)])
    assert drafter.propose([ask(traces[2], 14, 20)]) == [window]


def test_a_cache_grows_with_its_request(
    speculator: Eagle3Speculator, network: Eagle3Network, make_trace: Callable[..., Trace]
) -> None:
    trace = make_trace(7, prompt_len=300, num_response=8)
    drafter = speculator.drafter(network, dtype=torch.float32, device=CPU)
    drafter.propose([ask(trace, 0, 200)])
    (grown,) = drafter.propose([ask(trace, 200, 305)])
    drafter.forget(trace.trace_id)
    assert drafter.propose([ask(trace, 0, 305)]) == [grown]


def test_drafting_stops_at_the_last_position_of_the_model(
    speculator: Eagle3Speculator, network: Eagle3Network, make_trace: Callable[..., Trace]
) -> None:
    trace = make_trace(7, prompt_len=500, num_response=11)
    drafter = speculator.drafter(network, dtype=torch.bfloat16, device=CPU)
    (near,) = drafter.propose([ask(trace, 0, 509, depth=5)])
    assert len(near.token_ids) == 512 - 509
    (nearer,) = drafter.propose([ask(trace, 509, 510, depth=5)])
    assert len(nearer.token_ids) == 512 - 510


def test_forgetting_an_unknown_request_does_nothing(drafter: Drafter) -> None:
    drafter.forget("never seen")


def test_an_unlikely_chain_is_not_extended(
    make_speculator: Callable[..., Eagle3Speculator], network: Eagle3Network, traces: list[Trace]
) -> None:
    requests = [ask(trace, 0, 12, depth=6) for trace in traces]
    unlimited = make_speculator().drafter(network, dtype=torch.float32, device=CPU)
    whole = unlimited.propose(requests)
    cumulative = [torch.tensor(proposal.log_probs).cumsum(0).exp() for proposal in whole]
    assert any(chain[2] < 0.3 <= chain[0] for chain in cumulative)
    careful = make_speculator(min_confidence=0.3).drafter(network, dtype=torch.float32, device=CPU)
    for short, full, chain in zip(careful.propose(requests), whole, cumulative, strict=True):
        length = min(6, 1 + int((chain >= 0.3).sum()))
        assert list(short.token_ids) == list(full.token_ids)[:length]
        assert short.log_probs == pytest.approx(full.log_probs[:length])


def test_an_unlikely_token_after_the_first_is_not_proposed(
    make_speculator: Callable[..., Eagle3Speculator], network: Eagle3Network, traces: list[Trace]
) -> None:
    def draft(least: float, request: DraftRequest) -> Proposal:
        speculator = make_speculator(min_confidence=0.0, min_node_confidence=least)
        (proposal,) = speculator.drafter(network, dtype=torch.float32, device=CPU).propose(
            [request]
        )
        return proposal

    request = ask(traces[0], 0, 8)
    whole = draft(0.0, request)
    paths = torch.tensor(list(whole.log_probs)).cumsum(0).exp().tolist()
    assert len(paths) == 3 and paths[0] > paths[1] > paths[2]
    for kept, least in enumerate([(paths[0] + paths[1]) / 2, (paths[1] + paths[2]) / 2], start=1):
        cut = draft(least, request)
        assert list(cut.token_ids) == list(whole.token_ids[:kept])
        assert list(cut.parents) == list(whole.parents[:kept])
    assert len(draft(0.99, request).token_ids) == 1
    # Leaving out unlikely draws would change what the others are drawn from.
    sampled = replace(request, sampling=Sampling(temperature=1.0), uniforms=[0.9, 0.9, 0.9])
    assert len(draft(0.99, sampled).token_ids) == 3


def test_training_afterwards_does_not_change_a_drafter(
    speculator: Eagle3Speculator,
    weights: TargetWeights,
    traces: list[Trace],
) -> None:
    torch.manual_seed(0)
    trained = speculator.build_module(weights, traces)
    drafter = speculator.drafter(trained, dtype=torch.float32, device=CPU)
    before = drafter.propose([ask(traces[0], 0, 12)])
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.normal_()
    drafter.forget(traces[0].trace_id)
    assert drafter.propose([ask(traces[0], 0, 12)]) == before


def test_an_overfitted_trace_is_accepted_whole(
    make_speculator: Callable[..., Eagle3Speculator],
    weights: TargetWeights,
    make_trace: Callable[..., Trace],
) -> None:
    torch.manual_seed(0)
    trace = make_trace(11, num_response=24)
    speculator = make_speculator(training_steps=4, greedy_teacher="argmax")
    network = speculator.build_module(weights, [trace])
    batch = speculator.collate([trace])
    train(speculator, network, batch, num_steps=100)
    accepted, anchors = speculator.acceptance(network, batch, 4)
    # 24 response tokens: the first is no draft, and the last four begin no draft of four.
    assert anchors.tolist() == [24 - 4]
    assert accepted.tolist() == [[20, 20, 20, 20]]

    drafter = speculator.drafter(network, dtype=torch.float32, device=CPU)
    start, tokens = 0, trace.token_ids
    for root in range(trace.prompt_len, len(tokens) - 4):
        (proposal,) = drafter.propose([ask(trace, start, root, depth=4)])
        assert list(proposal.token_ids) == tokens[root + 1 : root + 5].tolist()
        start = root


def test_replay_counts_what_the_drafter_would_have_had_accepted(
    speculator: Eagle3Speculator, weights: TargetWeights, traces: list[Trace]
) -> None:
    torch.manual_seed(0)
    network = speculator.build_module(weights, traces)
    batch = speculator.collate(traces)
    train(speculator, network, batch, num_steps=40)
    accepted, anchors = speculator.acceptance(network, batch, 3)
    expected = torch.zeros_like(accepted)
    drafter = speculator.drafter(network, dtype=torch.float32, device=CPU)
    for index, trace in enumerate(traces):
        start = 0
        for root in range(trace.prompt_len, len(trace.token_ids) - 3):
            (proposal,) = drafter.propose([ask(trace, start, root)])
            start = root
            for depth, token in enumerate(proposal.token_ids):
                if token != int(trace.token_ids[root + 1 + depth]):
                    break
                expected[index, depth] += 1
    assert anchors.tolist() == [18 - 3] * 4
    assert accepted.tolist() == expected.tolist()
    assert 0 < int(accepted[:, 2].sum()) < int(accepted[:, 0].sum()) < int(anchors.sum())


def train(
    speculator: Eagle3Speculator,
    network: torch.nn.Module,
    batch: dict[str, torch.Tensor],
    *,
    num_steps: int,
) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(num_steps):
        output = speculator.loss(network, batch)
        optimizer.zero_grad()
        (output.loss_sum / output.weight_sum).backward()
        optimizer.step()
