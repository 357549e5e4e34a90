"""Trees: every node is computed from its own path, when drafting and when learning."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from aurora_core.interfaces import Proposal, Speculator
from aurora_core.records import Nodes, Rows, TargetSpec, Trace
from aurora_core.testing.reference_engine import draft_request
from aurora_core.testing.suites.material import recorded_traces
from aurora_core.testing.suites.speculator_fixtures import DrafterMaker
from aurora_core.testing.suites.speculator_learning import LearningPromises


class TreePromises(LearningPromises):
    """Speculators whose `topologies` name `tree`, and what all learn from traced trees."""

    @pytest.fixture
    def tree_speculator(self, speculator: Speculator) -> Speculator:
        """The speculator; tests that ask for it are skipped if it drafts chains only."""
        if "tree" not in speculator.topologies:
            pytest.skip("the speculator drafts no trees")
        return speculator

    @pytest.fixture
    def tree_traces(self, speculator: Speculator, target: TargetSpec) -> list[Trace]:
        """Answers that were drafted in trees, by whatever drafter."""
        return recorded_traces(target, speculator.needs, branching=2)

    def test_some_node_has_two_children(
        self,
        tree_speculator: Speculator,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        requests = [
            draft_request(
                trace,
                0,
                trace.prompt_len,
                num_speculative_tokens=num_speculative_tokens,
                max_nodes=max_nodes,
            )
            for trace in traces
        ]
        proposals = new_drafter().propose(requests)
        assert any(len(set(p.parents)) < len(p.parents) for p in proposals)

    def test_a_path_scores_the_same_whatever_grows_beside_it(
        self,
        tree_speculator: Speculator,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """With another node budget other siblings are drafted; a path in both must not notice."""
        num_compared = 0
        for trace in traces:
            found = []
            for budget in (num_speculative_tokens, max_nodes, 2 * max_nodes):
                (proposal,) = new_drafter().propose(
                    [
                        draft_request(
                            trace,
                            0,
                            trace.prompt_len + 3,
                            num_speculative_tokens=num_speculative_tokens,
                            max_nodes=budget,
                        )
                    ]
                )
                found.append(_paths(proposal))
            for smaller, larger in pairwise(found):
                for path in smaller.keys() & larger.keys():
                    assert smaller[path] == pytest.approx(larger[path], rel=1e-3, abs=1e-3), path
                    num_compared += len(path) > 1
        assert num_compared, "no path is in both trees"

    def test_traced_trees_can_be_learned_from(
        self, trainable: Speculator, module: nn.Module, tree_traces: list[Trace]
    ) -> None:
        """Engines may trace trees whatever the speculator drafts."""
        output = trainable.loss(module, trainable.collate(tree_traces))
        assert torch.isfinite(output.loss_sum)
        assert output.weight_sum > 0
        accepted, anchors = trainable.acceptance(module, trainable.collate(tree_traces), 2)
        assert bool((accepted <= anchors[:, None]).all())

    def test_branches_do_not_see_each_other_in_training(
        self, trainable: Speculator, module: nn.Module, tree_traces: list[Trace]
    ) -> None:
        """What two rejected branches add to loss and weight is what each adds alone."""
        for trace in tree_traces:
            rejected = (~trace.nodes.accepted).nonzero().flatten().tolist()
            leaves = [node for node in rejected if node not in trace.nodes.parent.tolist()]
            first, second = leaves[0::2], leaves[1::2]
            measured = []
            for removed in ([], first, second, leaves):
                batch = trainable.collate([_without_nodes(trace, removed)])
                output = trainable.loss(module, batch)
                measured.append(torch.stack((output.loss_sum.detach(), output.weight_sum)))
            both, without_first, without_second, neither = measured
            added = (without_first - neither) + (without_second - neither)
            torch.testing.assert_close(both - neither, added, rtol=1e-3, atol=2e-3)


def _paths(proposal: Proposal) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every node by its tokens from the root on."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(proposal.token_ids, proposal.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), int(token)))
    return dict(zip(found, proposal.log_probs, strict=True))


def _without_nodes(trace: Trace, removed: Collection[int]) -> Trace:
    """Return the trace without some rejected leaves and their rows."""
    num_nodes = len(trace.nodes.step)
    kept = torch.tensor([node not in removed for node in range(num_nodes)], dtype=torch.bool)
    renumbered = kept.cumsum(0) - 1
    rows_kept = (trace.rows.node < 0) | kept[trace.rows.node.clamp(min=0)]

    def number(nodes: Tensor) -> Tensor:
        return torch.where(nodes < 0, nodes, renumbered[nodes.clamp(min=0)])

    nodes = trace.nodes
    return dataclasses.replace(
        trace,
        nodes=Nodes(
            step=nodes.step[kept],
            token=nodes.token[kept],
            parent=number(nodes.parent[kept]),
            depth=nodes.depth[kept],
            accepted=nodes.accepted[kept],
            log_prob=nodes.log_prob[kept],
        ),
        rows=Rows(position=trace.rows.position[rows_kept], node=number(trace.rows.node[rows_kept])),
        features={name: rows[rows_kept] for name, rows in trace.features.items()},
    )
