"""Training through trees: the same numbers as one path at a time, in memory that grows linearly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from aurora_core.interfaces import LossOutput
from aurora_core.records import Nodes, Rows, Steps, Trace
from aurora_core.target.weights import TargetWeights
from aurora_eagle.collate import Batch
from aurora_eagle.model import Eagle3Network
from aurora_eagle.rollout import Kernel
from aurora_eagle.speculator import Eagle3Speculator
from aurora_eagle.training import compute_loss, supervising_rows
from aurora_eagle.tree import levels, unroll
from plugins.eagle.tests.test_rollout import draft_alone, request
from plugins.eagle.tests.tree_traces import with_branches

STEPS = 4


@pytest.fixture(scope="module")
def traces(make_trace: Callable[..., Trace], target_model: PreTrainedModel) -> list[Trace]:
    first = make_trace(1, prompt_len=7, num_response=16)
    second = make_trace(2, prompt_len=13, num_response=9)
    return [
        with_branches(first, target_model, seed=1, depth=STEPS),
        with_branches(second, target_model, seed=2, depth=STEPS),
    ]


@pytest.fixture(scope="module")
def learner(make_speculator: Callable[..., Eagle3Speculator]) -> Eagle3Speculator:
    return make_speculator(objective="branches", training_steps=STEPS)


@pytest.fixture(scope="module")
def network(
    learner: Eagle3Speculator, weights: TargetWeights, traces: list[Trace]
) -> Eagle3Network:
    torch.manual_seed(0)
    return learner.build_module(weights, traces)  # type: ignore[return-value]


def gradients(output: LossOutput, network: Eagle3Network) -> dict[str, Tensor]:
    names, parameters = zip(*network.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(output.loss_sum, parameters), strict=True))


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["plain", "fused"])
def test_every_node_equals_its_path_from_the_root_alone(
    learner: Eagle3Speculator, network: Eagle3Network, traces: list[Trace], kernel: Kernel
) -> None:
    batch = Batch.from_dict(learner.collate(traces))
    tree = levels(batch, STEPS)
    logits = [network.lm_head(hidden) for hidden in unroll(network, batch, tree, kernel=kernel)]
    num_anchors, compared = len(batch.anchor_row), 0
    for depth, level in enumerate(tree):
        for place, branch in enumerate(level.branch.tolist()):
            path = []
            node = branch
            while node >= 0:
                path.insert(0, int(batch.branch_token[node]))
                node = int(batch.branch_parent[node])
            row = int(batch.anchor_row[batch.branch_anchor[branch]])
            trace, position = traces[int(batch.row_trace[row])], int(batch.row_position[row])
            committed = trace.token_ids[position + 1 : position + 2 + depth - len(path)].tolist()
            expected = draft_alone(network, trace, position, committed + path)[depth]
            torch.testing.assert_close(
                logits[depth][num_anchors + place], expected, rtol=1e-4, atol=1e-4
            )
            compared += 1
    assert compared > 60
    assert len({len(level.branch) for level in tree[1:]} - {0}) >= 2


def test_chains_given_by_parent_pointers_have_the_loss_and_gradients_of_chains(
    make_speculator: Callable[..., Eagle3Speculator], network: Eagle3Network, traces: list[Trace]
) -> None:
    # Every chain a second time, as nodes that hang below each other by their parent pointers alone.
    chain, first_step = make_speculator(training_steps=STEPS), make_speculator(training_steps=1)
    batch = Batch.from_dict(chain.collate(traces))
    rows_KA = supervising_rows(batch, STEPS)
    num_anchors = rows_KA.shape[1]
    generator = torch.Generator().manual_seed(0)
    order = [torch.randperm(num_anchors, generator=generator) for _ in range(STEPS)]
    position_A, trace_A = (of[batch.anchor_row] for of in (batch.row_position, batch.row_trace))
    last = batch.token_ids.shape[1] - 1
    parent, token, teacher = [], [], []
    for depth in range(1, STEPS):
        above = order[depth - 1].argsort() + (depth - 2) * num_anchors
        parent.append(torch.full_like(above, -1) if depth == 1 else above[order[depth]])
        committed = batch.token_ids[trace_A, (position_A + 1 + depth).clamp(max=last)]
        token.append(committed[order[depth]])
        teacher.append(rows_KA[depth, order[depth]])
    pointers = dataclasses.replace(
        batch,
        # Chains that reach beyond the end are there as well, and nobody teaches them.
        teacher_row=torch.nn.functional.pad(batch.teacher_row, (0, STEPS), value=-1),
        branch_anchor=torch.cat(order[1:]),
        branch_parent=torch.cat(parent),
        branch_token=torch.cat(token),
        branch_depth=torch.arange(1, STEPS).repeat_interleave(num_anchors),
        branch_teacher=torch.cat(teacher),
        branch_log_prob=torch.zeros((STEPS - 1) * num_anchors),
        branch_version=torch.zeros((STEPS - 1) * num_anchors, dtype=torch.int64),
    )
    options = make_speculator(objective="branches", branch_floor=1.0, training_steps=STEPS).options
    twice = compute_loss(network, pointers, options)
    once = compute_loss(network, batch, chain.options)
    begun = compute_loss(network, batch, first_step.options)
    torch.testing.assert_close(
        twice.loss_sum, 2 * once.loss_sum - begun.loss_sum, rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(twice.weight_sum, 2 * once.weight_sum - begun.weight_sum)
    both, one, start = (gradients(output, network) for output in (twice, once, begun))
    for name in both:
        torch.testing.assert_close(
            both[name], 2 * one[name] - start[name], msg=name, rtol=1e-3, atol=1e-4
        )


def test_both_kernels_have_the_same_outputs_and_gradients(
    learner: Eagle3Speculator, network: Eagle3Network, traces: list[Trace]
) -> None:
    batch = Batch.from_dict(learner.collate(traces))
    tree = levels(batch, STEPS)
    plain, fused = (
        torch.cat(unroll(network, batch, tree, kernel=kernel)) for kernel in ("plain", "fused")
    )
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    outputs = [compute_loss(network, batch, learner.options, kernel=k) for k in ("plain", "fused")]
    torch.testing.assert_close(outputs[0].loss_sum, outputs[1].loss_sum, rtol=1e-5, atol=1e-5)
    one, other = (gradients(output, network) for output in outputs)
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=name, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_trees_of_the_serving_drafter_have_the_probabilities_that_training_computes(
    make_speculator: Callable[..., Eagle3Speculator],
    network: Eagle3Network,
    make_trace: Callable[..., Trace],
) -> None:
    trace = make_trace(1, prompt_len=7, num_response=16)
    server = make_speculator(tree_width=3, tree_nodes=12, min_node_confidence=0.0)
    drafter = server.drafter(network, dtype=torch.float32, device=torch.device("cpu"))
    start, roots, nodes = 0, (7, 10, 14), list[tuple[int, int, int, int, bool, float]]()
    for step, root in enumerate(roots):
        (proposal,) = drafter.propose([request(trace, start, root, STEPS - 1, max_nodes=12)])
        start, first = root, len(nodes)
        for token, parent, log_prob in zip(
            proposal.token_ids, proposal.parents, proposal.log_probs, strict=True
        ):
            above = first + parent if parent >= 0 else -1
            depth = nodes[above][3] + 1 if parent >= 0 else 1
            # None is accepted; those that foresaw the next token are taken for it.
            nodes.append((step, token, above, depth, False, log_prob))
    columns = [torch.tensor(column) for column in zip(*nodes, strict=True)]
    zeros = torch.zeros(len(nodes))
    drafted = dataclasses.replace(
        trace,
        steps=Steps(
            root=torch.tensor(roots),
            version=torch.ones(3, dtype=torch.int64),
            bonus_token=trace.token_ids[torch.tensor(roots) + 1],
            num_accepted=torch.zeros(3, dtype=torch.int64),
            draft_ms=torch.zeros(3),
            verify_ms=torch.zeros(3),
        ),
        nodes=Nodes(
            step=columns[0],
            token=columns[1],
            parent=columns[2],
            depth=columns[3],
            accepted=columns[4],
            log_prob=columns[5].float(),
        ),
        rows=Rows(
            position=torch.cat([trace.rows.position, torch.full((len(nodes),), -1)]),
            node=torch.cat([trace.rows.node, torch.arange(len(nodes))]),
        ),
        features={
            name: torch.cat([tensor, zeros.reshape(-1, *[1] * (tensor.dim() - 1)).expand(
                -1, *tensor.shape[1:])])
            for name, tensor in trace.features.items()
        },
    )  # fmt: skip
    learner = make_speculator(objective="branches", training_steps=STEPS)
    batch = Batch.from_dict(learner.collate([drafted]))
    tree = levels(batch, STEPS)
    hidden = unroll(network, batch, tree)
    place_of = {int(token): place for place, token in enumerate(network.target_ids)}
    compared = 0
    for above, level in zip(hidden, tree[1:], strict=False):
        for parent, branch in zip(level.parent[len(batch.anchor_row) :], level.branch, strict=True):
            log_probs = network.lm_head(above[parent]).log_softmax(-1)
            found = log_probs[place_of[int(batch.branch_token[branch])]]
            torch.testing.assert_close(found, batch.branch_log_prob[branch], rtol=1e-4, atol=1e-4)
            compared += 1
    assert compared > 20
    assert int(batch.branch_depth.max()) == STEPS - 1


class _Count(TorchDispatchMode):
    """Counts the elements of all tensors that operations return."""

    num_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.num_elements += result.numel()
        return result


def test_memory_grows_linearly_with_the_nodes_of_a_trace(
    learner: Eagle3Speculator, network: Eagle3Network, traces: list[Trace]
) -> None:
    batch = Batch.from_dict(learner.collate(traces[:1]))

    def elements(copies: int) -> int:
        many = dataclasses.replace(
            batch,
            **{
                name: torch.cat([getattr(batch, name)] * copies)
                for name in batch.__slots__
                if name.startswith("branch_") and name != "branch_parent"
            },
            branch_parent=torch.cat(
                [
                    torch.where(batch.branch_parent < 0, -1, batch.branch_parent + copy * num_nodes)
                    for copy in range(copies)
                ]
            ),
        )
        with _Count() as count:
            output = compute_loss(network, many, learner.options, kernel="plain")
            output.loss_sum.backward()
        return count.num_elements

    num_nodes = len(batch.branch_parent)
    counts = [elements(copies) for copies in (4, 8, 12)]
    assert counts[2] - counts[1] == pytest.approx(counts[1] - counts[0], rel=0.02)
    assert counts[1] - counts[0] > 4 * num_nodes * network.shape.hidden_size


def test_a_trace_that_begins_late_does_not_spoil_the_gradients_of_a_short_one(
    make_speculator: Callable[..., Eagle3Speculator],
    network: Eagle3Network,
    make_trace: Callable[..., Trace],
) -> None:
    # Slots that pad the second trace stand for an anchor that lies before all of its context.
    speculator = make_speculator(max_trace_tokens=16)
    batch = speculator.collate(
        [make_trace(1, prompt_len=3, num_response=12), make_trace(2, prompt_len=40, num_response=5)]
    )
    output = speculator.loss(network, batch)
    assert all(bool(torch.isfinite(one).all()) for one in gradients(output, network).values())
