"""Dynamic trees: which nodes are kept, and that each is computed as if its path stood alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from aurora_core import kernels
from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_core.records import Trace
from aurora_core.target.weights import TargetWeights
from aurora_eagle.draft_cache import Cache
from aurora_eagle.model import Eagle3Network
from aurora_eagle.serving_network import Places, ServingNetwork
from aurora_eagle.speculator import Eagle3Speculator
from aurora_eagle.tree_drafting import Candidates

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def traces(make_trace: Callable[..., Trace]) -> list[Trace]:
    return [make_trace(seed, prompt_len=5 + 3 * seed, num_response=18) for seed in range(3)]


@pytest.fixture(scope="module")
def network(
    speculator: Eagle3Speculator, weights: TargetWeights, traces: list[Trace]
) -> Eagle3Network:
    torch.manual_seed(0)
    return speculator.build_module(weights, traces)  # type: ignore[return-value]


@pytest.fixture
def make_drafter(
    make_speculator: Callable[..., Eagle3Speculator], network: Eagle3Network
) -> Callable[..., Drafter]:
    def make(**options: object) -> Drafter:
        speculator = make_speculator(**{"tree_width": 3, "min_node_confidence": 0.0} | options)
        return speculator.drafter(network, dtype=torch.bfloat16, device=CPU)

    return make


@pytest.fixture
def with_torch_operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AURORA_KERNELS", "torch")
    kernels.compiled.cache_clear()
    yield
    monkeypatch.undo()
    kernels.compiled.cache_clear()


def ask(trace: Trace, start: int, root: int, *, depth: int = 4, nodes: int = 256) -> DraftRequest:
    return DraftRequest(
        request_id=trace.trace_id,
        start=start,
        token_ids=trace.token_ids[start : root + 1],
        features={"aux_hidden_states": trace.features["aux_hidden_states"][start:root]},
        num_speculative_tokens=depth,
        max_nodes=nodes,
    )


def depths(proposal: Proposal) -> list[int]:
    """Return the depth of each node; fails unless parents come before children."""
    found: list[int] = []
    for parent in proposal.parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def scores(proposal: Proposal) -> list[float]:
    """Return the log-probability of each node's path."""
    found: list[float] = []
    for parent, log_prob in zip(proposal.parents, proposal.log_probs, strict=True):
        found.append(log_prob + (found[parent] if parent >= 0 else 0.0))
    return found


class PathsAlone:
    """Steps a network along one path at a time, each from an empty cache."""

    def __init__(self, network: Eagle3Network, trace: Trace, root: int) -> None:
        self.network = ServingNetwork(network, dtype=torch.bfloat16, device=CPU)
        self.trace, self.root = trace, root

    def top(self, path: Sequence[int], count: int) -> list[tuple[int, float]]:
        """Return the best tokens after a path of drafted tokens and their log-probabilities."""
        cache = Cache(*self.network.allocate(64), 0, 0)
        hidden = self.network.fuse(self.trace.features["aux_hidden_states"][: self.root])
        token_ids = self.trace.token_ids[1 : self.root + 1]
        # All rows are stepped; the last one's output is what drafts start from.
        hidden = self._step(hidden, token_ids, cache, torch.arange(self.root))[-1:]
        for depth, token_id in enumerate(path):
            at = torch.tensor([self.root + depth])
            hidden = self._step(hidden, torch.tensor([token_id]), cache, at)
        token_ids, log_probs = self.network.top(hidden, count)
        return list(zip(token_ids[0].tolist(), log_probs[0].tolist(), strict=True))

    def _step(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, cache: Cache, at: torch.Tensor
    ) -> torch.Tensor:
        places = Places(torch.zeros_like(at), at, at)
        x = self.network.read(token_ids, hidden)
        return self.network.step(hidden, x, places, [cache], length=at + 1)


def grown_alone(alone: PathsAlone, *, width: int, depth: int, nodes: int) -> Proposal:
    """Return the tree by the definition: every path by itself, nothing left out early."""
    pool: list[tuple[tuple[int, ...], float, float]] = []
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(depth):
        children = [
            ((*path, token), log_prob, score + log_prob)
            for path, score in beams
            for token, log_prob in alone.top(path, width)
        ]
        pool += children
        best = sorted(children, key=lambda child: -child[2])[:width]
        beams = [(path, score) for path, _, score in children if (path, _, score) in best]
    best = sorted(pool, key=lambda node: -node[2])[:nodes]
    kept = [node for node in pool if node in best]
    index = {path: place for place, (path, _, _) in enumerate(kept)} | {(): -1}
    return Proposal(
        token_ids=[path[-1] for path, _, _ in kept],
        parents=[index[path[:-1]] for path, _, _ in kept],
        log_probs=[log_prob for _, log_prob, _ in kept],
    )


@pytest.mark.parametrize(("width", "depth", "nodes"), [(2, 5, 9), (3, 4, 30), (4, 3, 14)])
def test_a_tree_has_the_nodes_and_the_bits_of_its_paths_alone(
    make_drafter: Callable[..., Drafter],
    network: Eagle3Network,
    traces: list[Trace],
    width: int,
    depth: int,
    nodes: int,
) -> None:
    drafter = make_drafter(tree_width=width, tree_nodes=256)
    requests = [ask(trace, 0, 11, depth=depth, nodes=nodes) for trace in traces]
    proposals = drafter.propose(requests)
    assert any(
        depths(proposal).count(level) > 1 and max(depths(proposal)) >= 3
        for proposal in proposals
        for level in (2, 3)
    )
    for trace, proposal in zip(traces, proposals, strict=True):
        expected = grown_alone(
            PathsAlone(network, trace, 11), width=width, depth=depth, nodes=nodes
        )
        assert proposal == expected


def test_trees_are_the_same_to_the_bit_whatever_shares_the_batch(
    make_drafter: Callable[..., Drafter], traces: list[Trace]
) -> None:
    schedule = [[0, 8, 9, 12, 14], [0, 11, 12, 13, 17], [0, 14, 16, 19, 22]]

    def draft(chosen: list[int]) -> dict[int, list[Proposal]]:
        drafter = make_drafter(tree_nodes=256)
        proposals: dict[int, list[Proposal]] = {index: [] for index in chosen}
        for turn in range(4):
            requests = [
                ask(
                    traces[index],
                    schedule[index][turn],
                    schedule[index][turn + 1],
                    depth=2 + index,
                    nodes=200 if turn == 1 else 5 + 10 * index,
                )
                for index in chosen
            ]
            for index, proposal in zip(chosen, drafter.propose(requests), strict=True):
                proposals[index].append(proposal)
        return proposals

    together = draft([0, 1, 2])
    assert [len(turns[0].token_ids) for turns in together.values()] == [5, 15, 25]
    # With nodes to spare, the depth alone ends a tree.
    assert [len(turns[1].token_ids) for turns in together.values()] == [3 + 9, 3 + 18, 3 + 27]
    assert [max(depths(turns[1])) for turns in together.values()] == [2, 3, 4]
    for index in range(3):
        assert draft([index])[index] == together[index]
    assert draft([2, 0]) == {index: together[index] for index in (2, 0)}


def test_nodes_that_the_drafter_fed_itself_are_forgotten(
    make_drafter: Callable[..., Drafter], traces: list[Trace]
) -> None:
    trace, drafter = traces[0], make_drafter(tree_nodes=256)
    drafter.propose([ask(trace, 0, 7, depth=8)])
    drafter.propose([ask(trace, 7, 10, depth=8)])
    (after_drafts,) = drafter.propose([ask(trace, 10, 15)])
    drafter.forget(trace.trace_id)
    assert drafter.propose([ask(trace, 0, 15)]) == [after_drafts]


@pytest.mark.parametrize("root", [220, 226, 227, 228, 254])
def test_a_tree_finds_room_behind_a_full_cache(
    make_drafter: Callable[..., Drafter],
    make_trace: Callable[..., Trace],
    with_torch_operators: None,
    root: int,
) -> None:
    # A cache begins with 256 rows; a tree of depth 8 and width 3 needs 29 behind the target's.
    # Torch checks the bounds that the compiled kernels do not.
    trace = make_trace(7, prompt_len=250, num_response=8)
    drafter = make_drafter(tree_nodes=256)
    drafter.propose([ask(trace, 0, 100, depth=0)])
    (tree,) = drafter.propose([ask(trace, 100, root, depth=8)])
    assert len(tree.token_ids) == 3 + 7 * 9


def test_the_budget_is_the_lesser_of_request_and_configuration(
    make_drafter: Callable[..., Drafter], traces: list[Trace]
) -> None:
    requests = [
        ask(trace, 0, 12, nodes=nodes) for trace, nodes in zip(traces, (1, 4, 40), strict=True)
    ]
    proposals = make_drafter(tree_nodes=7).propose(requests)
    assert [len(proposal.token_ids) for proposal in proposals] == [1, 4, 7]
    (none,) = make_drafter().propose([ask(traces[0], 0, 12, nodes=0)])
    assert not none.token_ids


def test_a_chain_keeps_to_the_budget_of_its_request(
    make_drafter: Callable[..., Drafter], traces: list[Trace]
) -> None:
    chain = make_drafter(tree_width=1, tree_nodes=1)
    (short,) = chain.propose([ask(traces[0], 0, 12, depth=5, nodes=3)])
    assert short.parents == [-1, 0, 1]


def test_a_tree_holds_the_chain_if_the_budget_does(
    make_drafter: Callable[..., Drafter], traces: list[Trace]
) -> None:
    request = ask(traces[1], 0, 12, depth=2)
    (chain,) = make_drafter(tree_width=1).propose([request])
    (tree,) = make_drafter(tree_width=2, tree_nodes=6).propose([request])
    assert len(tree.token_ids) == 2 + 4
    first = list(tree.parents).index(-1)
    second = list(tree.parents).index(first)
    assert [tree.token_ids[first], tree.token_ids[second]] == chain.token_ids
    assert [tree.log_probs[first], tree.log_probs[second]] == chain.log_probs


def test_an_unlikely_path_is_not_extended(
    make_drafter: Callable[..., Drafter], traces: list[Trace]
) -> None:
    (full,) = make_drafter(tree_nodes=256).propose([ask(traces[0], 0, 12, depth=3)])
    best = sorted(scores(full)[:3], reverse=True)
    between = math.exp((best[0] + best[1]) / 2)
    (careful,) = make_drafter(tree_nodes=256, min_confidence=between).propose(
        [ask(traces[0], 0, 12, depth=3)]
    )
    extended = {careful.parents[node] for node in range(3, len(careful.parents))}
    assert extended == {node for node, score in enumerate(scores(careful)) if score == best[0]}


def test_an_unlikely_node_is_not_proposed(
    make_drafter: Callable[..., Drafter], traces: list[Trace]
) -> None:
    request = ask(traces[0], 0, 12, depth=3)
    (full,) = make_drafter(tree_nodes=256).propose([request])
    least = sorted(scores(full))[-4] + 1e-9
    (few,) = make_drafter(tree_nodes=256, min_node_confidence=math.exp(least)).propose([request])
    assert len(few.token_ids) == 3
    assert sorted(scores(few)) == sorted(scores(full))[-3:]


def test_trees_stop_at_the_last_position_of_the_model(
    make_drafter: Callable[..., Drafter], make_trace: Callable[..., Trace]
) -> None:
    trace = make_trace(7, prompt_len=500, num_response=11)
    drafter = make_drafter(tree_nodes=256)
    (near,) = drafter.propose([ask(trace, 0, 509, depth=5)])
    assert max(depths(near)) == 512 - 509
    (nearer,) = drafter.propose([ask(trace, 509, 510, depth=5)])
    assert max(depths(nearer)) == 512 - 510


def test_torch_operators_draft_the_same_tree(
    make_drafter: Callable[..., Drafter], traces: list[Trace], request: pytest.FixtureRequest
) -> None:
    requests = [ask(trace, 0, 12) for trace in traces]
    compiled = make_drafter().propose(requests)
    request.getfixturevalue("with_torch_operators")
    by_operators = make_drafter().propose(requests)
    for ours, theirs in zip(compiled, by_operators, strict=True):
        assert sorted(scores(ours)) == pytest.approx(sorted(scores(theirs)), abs=0.05)


def test_the_shape_of_proposals_follows_the_width(
    make_speculator: Callable[..., Eagle3Speculator],
) -> None:
    assert make_speculator(tree_width=1).topologies == {"chain"}
    assert make_speculator(tree_width=2).topologies == {"tree"}


def test_candidates_by_hand() -> None:
    tree = Candidates(max_nodes=4, least=-10.0)
    tree.add(-1, [10, 11], [-1.0, -2.0])
    assert tree.to_expand(0, width=2, min_log_prob=-9.0) == [0, 1]
    tree.add(0, [20, 21], [-0.5, -3.0])
    tree.add(1, [22, 23], [-0.25, -0.25])
    # Scores: -1, -2, -1.5, -4, -2.25, -2.25. Node 4 is the fourth: nothing below it can be among
    # the best four, and of equal scores the earlier comes first.
    assert tree.ranking() == [0, 2, 1, 4, 5, 3]
    assert tree.to_expand(2, width=2, min_log_prob=-9.0) == [2]
    assert tree.proposal() == Proposal(
        token_ids=[10, 11, 20, 22], parents=[-1, -1, 0, 1], log_probs=[-1.0, -2.0, -0.5, -0.25]
    )
    tree.max_nodes = 6
    assert tree.to_expand(2, width=3, min_log_prob=-9.0) == [2, 4, 5]
    assert tree.to_expand(2, width=2, min_log_prob=-9.0) == [2, 4]
    assert tree.to_expand(2, width=3, min_log_prob=-2.0) == [2]
    tree.least = -2.0
    assert tree.to_expand(2, width=3, min_log_prob=-9.0) == [2]
    assert tree.proposal().parents == [-1, -1, 0]


def test_a_certain_child_does_not_overtake_its_parent() -> None:
    tree = Candidates(max_nodes=1, least=-math.inf)
    tree.add(-1, [5], [-0.5])
    # What rounding leaves of a probability of 1.
    tree.add(0, [6], [1e-7])
    assert tree.log_probs == [-0.5, 0.0]
    assert tree.proposal() == Proposal(token_ids=[5], parents=[-1], log_probs=[-0.5])
