"""Objectives through the speculator: which rows teach, what, and how much."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import PreTrainedModel

from aurora_core.learner.teacher import sampling_probabilities
from aurora_core.records import Rows, Sampling, Trace
from aurora_core.target.weights import TargetWeights
from aurora_eagle.collate import Batch
from aurora_eagle.config import Eagle3Options
from aurora_eagle.model import Eagle3Network
from aurora_eagle.speculator import Eagle3Speculator
from aurora_eagle.teacher import Teacher
from plugins.eagle.tests.test_rollout import draft_alone
from plugins.eagle.tests.tree_traces import with_branches

MakeSpeculator = Callable[..., Eagle3Speculator]
OBJECTIVES = ("kl", "lk_hybrid", "discard", "branches", "unlikelihood")


@pytest.fixture(scope="module")
def plain(make_trace: Callable[..., Trace]) -> Trace:
    return make_trace(1, prompt_len=7, num_response=12)


@pytest.fixture(scope="module")
def trace(plain: Trace, target_model: PreTrainedModel) -> Trace:
    return with_branches(plain, target_model, seed=1, depth=3, versions=(3, 4, 6))


@pytest.fixture(scope="module")
def network(speculator: Eagle3Speculator, weights: TargetWeights, trace: Trace) -> Eagle3Network:
    torch.manual_seed(0)
    return speculator.build_module(weights, [trace])  # type: ignore[return-value]


@dataclasses.dataclass
class Node:
    """A rejected node and what the slow way knows about it."""

    depth: int
    version: int
    anchor: int
    fed: list[int]
    """The token after the anchor, and those drafted after it, the node's own last."""
    last_hidden: Tensor
    parent: int | None
    """Rejected parent."""
    place: int
    """Of the node."""


def rejected(trace: Trace) -> dict[int, Node]:
    row_of = {int(node): row for row, node in enumerate(trace.rows.node) if node >= 0}
    found = {}
    for node, row in row_of.items():
        path, above = [], node
        while above >= 0:
            path.insert(0, int(trace.nodes.token[above]))
            above = int(trace.nodes.parent[above])
        step = int(trace.nodes.step[node])
        root = int(trace.steps.root[step])
        parent = int(trace.nodes.parent[node])
        found[node] = Node(
            depth=int(trace.nodes.depth[node]),
            version=int(trace.steps.version[step]),
            anchor=root - 1,
            fed=[int(trace.token_ids[root]), *path],
            last_hidden=trace.features["last_hidden_state"][row],
            parent=parent if parent >= 0 and not trace.nodes.accepted[parent] else None,
            place=root + int(trace.nodes.depth[node]),
        )
    return found


def divergence(network: Eagle3Network, trace: Trace, node: Node) -> Tensor:
    """KL at a rejected node by the formula."""
    log_target = (node.last_hidden @ network.target_head.T).log_softmax(-1)[network.target_ids]
    log_draft = draft_alone(network, trace, node.anchor, node.fed)[-1].log_softmax(-1)
    return (log_target.exp() * (log_target - log_draft)).sum()


def reach(network: Eagle3Network, trace: Trace, nodes: dict[int, Node], node: int) -> float:
    """Product of the target's probabilities of the rejected tokens down to a node."""
    one = nodes[node]
    if one.parent is None:
        hidden, above = trace.features["last_hidden_state"][one.place - 1], 1.0
    else:
        hidden = nodes[one.parent].last_hidden
        above = reach(network, trace, nodes, one.parent)
    return above * float((hidden @ network.target_head.T).softmax(-1)[one.fed[-1]])


def trained(trace: Trace) -> dict[int, Node]:
    """Rejected nodes that three training steps run through."""
    return {
        key: node
        for key, node in rejected(trace).items()
        if node.depth < 3 and (node.parent is not None or node.place < len(trace.token_ids))
    }


@torch.no_grad()
def test_discard_is_the_mean_at_committed_plus_lambda_times_the_mean_at_rejected_nodes(
    make_speculator: MakeSpeculator, network: Eagle3Network, trace: Trace, plain: Trace
) -> None:
    committed = make_speculator().loss(network, make_speculator().collate([plain]))
    speculator = make_speculator(objective="discard", discard_weight=0.3)
    output = speculator.loss(network, speculator.collate([trace]))
    nodes = list(trained(trace).values())
    assert len(nodes) > 20
    weights = torch.tensor([0.8**node.depth for node in nodes])
    losses = torch.stack([divergence(network, trace, node) for node in nodes])
    expected = committed.loss_sum / committed.weight_sum + 0.3 * (
        (weights * losses).sum() / weights.sum()
    )
    torch.testing.assert_close(output.loss_sum / output.weight_sum, expected)


@torch.no_grad()
@pytest.mark.parametrize("floor", [0.0, 0.003])
def test_branches_weigh_rejected_nodes_by_reach_with_a_floor(
    make_speculator: MakeSpeculator,
    network: Eagle3Network,
    trace: Trace,
    plain: Trace,
    floor: float,
) -> None:
    committed = make_speculator().loss(network, make_speculator().collate([plain]))
    speculator = make_speculator(objective="branches", branch_floor=floor)
    output = speculator.loss(network, speculator.collate([trace]))
    every = rejected(trace)
    weights = {
        key: 0.8**node.depth * max(reach(network, trace, every, key), floor)
        for key, node in trained(trace).items()
    }
    assert len(set(weights.values())) > (3 if floor else 20)
    total = sum(weight * divergence(network, trace, every[key]) for key, weight in weights.items())
    torch.testing.assert_close(output.loss_sum, committed.loss_sum + total, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output.weight_sum, committed.weight_sum + sum(weights.values()))


@torch.no_grad()
def test_unlikelihood_raises_committed_and_lowers_refused_tokens_without_target_rows(
    make_speculator: MakeSpeculator, network: Eagle3Network, trace: Trace
) -> None:
    speculator = make_speculator(objective="unlikelihood", refusal_weight=0.5, training_steps=2)
    tokens_only = dataclasses.replace(
        trace, features={"aux_hidden_states": trace.features["aux_hidden_states"]}
    )
    output = speculator.loss(network, speculator.collate([tokens_only]))
    index = {int(token): place for place, token in enumerate(network.target_ids)}
    refused: dict[int, set[int]] = {}
    for node in rejected(trace).values():
        if node.parent is None and node.place < len(trace.token_ids):
            refused.setdefault(node.place, set()).add(node.fed[-1])
    assert len(refused) > 5
    expected, num_tokens = 0.0, len(trace.token_ids)
    for anchor in range(trace.prompt_len - 1, num_tokens - 2):
        fed = trace.token_ids[anchor + 1 : anchor + 3].tolist()
        probs = draft_alone(network, trace, anchor, fed).softmax(-1)
        for step in range(2):
            place = anchor + 2 + step
            if place >= num_tokens:
                continue
            loss = 0.0
            if (right := index.get(int(trace.token_ids[place]))) is not None:
                loss -= float(probs[step, right].log())
            for token in refused.get(place, ()):
                if token in index:
                    loss -= 0.5 * float((1 - probs[step, index[token]]).log())
            expected += 0.8**step * loss
    assert float(output.loss_sum) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_needs_name_branch_and_target_rows_only_where_they_are_used(
    make_speculator: MakeSpeculator, objective: str
) -> None:
    needs = make_speculator(objective=objective).needs
    assert needs.branch_rows == (objective in ("discard", "branches"))
    assert ("last_hidden_state" in needs.features) == (objective != "unlikelihood")
    assert "aux_hidden_states" in needs.features


@torch.no_grad()
@pytest.mark.parametrize("objective", ["discard", "branches"])
@pytest.mark.parametrize("without", ["nodes", "rows"])
def test_traces_without_branches_teach_what_kl_teaches(
    make_speculator: MakeSpeculator,
    network: Eagle3Network,
    trace: Trace,
    plain: Trace,
    objective: str,
    without: str,
) -> None:
    kept = trace.rows.node < 0
    old = plain if without == "nodes" else dataclasses.replace(
        trace,
        rows=Rows(position=trace.rows.position[kept], node=trace.rows.node[kept]),
        features={name: tensor[kept] for name, tensor in trace.features.items()},
    )  # fmt: skip
    speculator, reference = make_speculator(objective=objective), make_speculator()
    output = speculator.loss(network, speculator.collate([old]))
    expected = reference.loss(network, reference.collate([plain]))
    assert torch.equal(output.loss_sum, expected.loss_sum)
    assert torch.equal(output.weight_sum, expected.weight_sum)


def test_objectives_without_branches_do_not_collate_them(
    make_speculator: MakeSpeculator, trace: Trace
) -> None:
    assert not len(make_speculator(objective="lk_hybrid").collate([trace])["branch_token"])
    assert len(make_speculator(objective="discard").collate([trace])["branch_token"])


def test_branches_of_drafters_that_are_too_old_are_left_out(
    make_speculator: MakeSpeculator, trace: Trace
) -> None:
    bounded = make_speculator(objective="discard", max_branch_staleness=2).collate([trace])
    everything = make_speculator(objective="discard").collate([trace])
    assert set(everything["branch_version"].tolist()) == {3, 4, 6}
    assert set(bounded["branch_version"].tolist()) == {4, 6}


def test_a_right_draft_after_which_the_answer_ended_is_no_branch(
    make_speculator: MakeSpeculator, plain: Trace, target_model: PreTrainedModel
) -> None:
    trace = with_branches(plain, target_model, seed=1, depth=2)
    last = int((trace.nodes.depth == 1).nonzero()[-1])
    node = next(n for n in range(last + 1) if not trace.nodes.accepted[n]
                and trace.nodes.parent[n] < 0)  # fmt: skip
    root = int(trace.steps.root[trace.nodes.step[node]])
    token = trace.nodes.token.clone()
    token[node] = trace.token_ids[root + 1]
    repeated = dataclasses.replace(trace, nodes=dataclasses.replace(trace.nodes, token=token))
    speculator = make_speculator(objective="discard")
    before, after = (speculator.collate([one])["branch_token"] for one in (trace, repeated))
    assert len(after) < len(before)


@torch.no_grad()
def test_ratio_compares_the_drafter_in_training_with_the_one_that_drafted(
    make_speculator: MakeSpeculator, network: Eagle3Network, trace: Trace, plain: Trace
) -> None:
    speculator = make_speculator(objective="branches", branch_floor=1.0, branch_ratio_limit=1.5)
    output = speculator.loss(network, speculator.collate([trace]))
    committed = make_speculator().loss(network, make_speculator().collate([plain]))
    every, index = rejected(trace), {int(t): i for i, t in enumerate(network.target_ids)}

    def ratio(key: int) -> float:
        node = every[key]
        above = 1.0 if node.parent is None else ratio(node.parent)
        if node.fed[-1] not in index:
            return 0.0
        logits = draft_alone(network, trace, node.anchor, node.fed[:-1])[-1]
        now = float(logits.softmax(-1)[index[node.fed[-1]]])
        return above * now / float(trace.nodes.log_prob[key].exp())

    weights = [0.8**node.depth * min(ratio(key), 1.5) for key, node in trained(trace).items()]
    torch.testing.assert_close(
        output.weight_sum, committed.weight_sum + sum(weights), rtol=1e-4, atol=1e-4
    )
    assert float(output.weight_sum) > float(committed.weight_sum)


@torch.no_grad()
def test_reach_weights_of_a_drafter_that_is_never_right_are_the_least(
    make_speculator: MakeSpeculator, weights: TargetWeights, plain: Trace
) -> None:
    speculator = make_speculator(depth_weights="reach", draft_vocab_size=8)
    network = speculator.build_module(weights, [])
    assert not bool(network.t2d[plain.token_ids[8:]].any())
    output = speculator.loss(network, speculator.collate([plain]))
    assert float(output.metrics["accepted_1"]) == 0.0
    # 11 anchors predict tokens 8 to 18; 10 and 9 of them have a second and a third to predict.
    torch.testing.assert_close(output.weight_sum, torch.tensor(11 + 0.05 * (10 + 9)))


@torch.no_grad()
def test_losses_of_batches_add_up_under_reach_weights(
    make_speculator: MakeSpeculator, network: Eagle3Network, make_trace: Callable[..., Trace]
) -> None:
    speculator = make_speculator(objective="branches", depth_weights="reach")
    traces = [make_trace(seed) for seed in (1, 2, 3)]
    alone = [speculator.loss(network, speculator.collate([trace])) for trace in traces]
    together = speculator.loss(network, speculator.collate(traces))
    torch.testing.assert_close(together.loss_sum, sum(one.loss_sum for one in alone))
    torch.testing.assert_close(together.weight_sum, sum(one.weight_sum for one in alone))


@torch.no_grad()
def test_a_sampled_requests_rejected_nodes_teach_and_weigh_its_own_distribution(
    make_speculator: MakeSpeculator,
    network: Eagle3Network,
    make_trace: Callable[..., Trace],
    target_model: PreTrainedModel,
) -> None:
    sampling = Sampling(temperature=0.6, top_p=0.9, rule="point_mass")
    trace = with_branches(make_trace(4, sampling=sampling), target_model, seed=3, depth=2)
    batch = Batch.from_dict(make_speculator(objective="branches").collate([trace]))
    teacher = Teacher(network, batch, greedy_teacher="soft")
    node = int((batch.branch_teacher >= 0).nonzero()[0])
    row = batch.branch_teacher[node]
    expected = sampling_probabilities(
        batch.last_hidden_state[row][None] @ network.target_head.T,
        temperature=torch.tensor([0.6]),
        top_p=torch.tensor([0.9]),
        top_k=torch.tensor([0]),
    )[0]
    probs, _ = teacher.probabilities(slice(int(row), int(row) + 1))
    torch.testing.assert_close(probs[0], expected[network.target_ids])
    assert float(probs.sum()) < 0.999
    best = expected.argmax()
    found = teacher.log_probability(torch.stack([row, row * 0 - 1]), torch.stack([best, best]))
    assert found.exp().tolist() == pytest.approx([float(expected[best]), 0.0])


@torch.no_grad()
def test_argmax_teacher_names_the_best_token_at_rejected_nodes_too(
    make_speculator: MakeSpeculator, network: Eagle3Network, trace: Trace
) -> None:
    speculator = make_speculator(objective="branches", greedy_teacher="argmax")
    batch = Batch.from_dict(speculator.collate([trace]))
    teacher = Teacher(network, batch, greedy_teacher="argmax")
    probs, _ = teacher.probabilities(slice(0, teacher.num_rows))
    for row in batch.branch_teacher.tolist():
        best = int((batch.last_hidden_state[row] @ network.target_head.T).argmax())
        assert torch.equal(probs[row], (network.target_ids == best).float())


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_lowers_its_loss_on_trees(
    make_speculator: MakeSpeculator, weights: TargetWeights, trace: Trace, objective: str
) -> None:
    torch.manual_seed(0)
    speculator = make_speculator(objective=objective, depth_weights="reach")
    network = speculator.build_module(weights, [trace])
    batch = speculator.collate([trace])
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    lengths = []
    for _ in range(30):
        output = speculator.loss(network, batch)
        optimizer.zero_grad()
        (output.loss_sum / output.weight_sum).backward()
        optimizer.step()
        lengths.append(float(output.metrics["acceptance_length"]))
    assert lengths[-1] > lengths[0] + 0.5


@pytest.mark.parametrize(
    "option",
    [{"objective": "reverse_kl"}, {"branch_floor": 1.5}, {"branch_ratio_limit": 0},
     {"discard_weight": -1}, {"depth_weights": "none"}],
    ids=str,
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(option))):
        Eagle3Options.model_validate(option)
