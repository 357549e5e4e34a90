"""What was learned is what is served: training and drafting compute the same."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from aurora_core.interfaces import Drafter, Proposal, Speculator
from aurora_core.records import Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.reference_engine import ReferenceEngine, draft_request
from aurora_core.testing.suites.speculator_fixtures import (
    best_path,
    build,
    draft_along,
    require_equal,
    serve,
)
from aurora_core.testing.suites.speculator_learning import LearningPromises


class ServingPromises(LearningPromises):
    """`acceptance` and `drafter`."""

    def test_replay_counts_per_trace_and_falls_with_depth(
        self,
        trainable: Speculator,
        module: nn.Module,
        traces: list[Trace],
        num_speculative_tokens: int,
    ) -> None:
        depth = num_speculative_tokens
        accepted, anchors = trainable.acceptance(module, trainable.collate(traces), depth)
        assert accepted.dtype == anchors.dtype == torch.int64
        assert accepted.shape == (len(traces), depth)
        assert anchors.shape == (len(traces),)
        assert bool((accepted >= 0).all())
        assert bool((accepted <= anchors[:, None]).all())
        assert bool((accepted[:, 1:] <= accepted[:, :-1]).all())
        alone = [
            trainable.acceptance(module, trainable.collate([trace]), depth) for trace in traces
        ]
        assert accepted.tolist() == [counts[0].tolist() for counts, _ in alone]
        assert anchors.tolist() == [int(count) for _, count in alone]

    def test_replay_scores_the_positions_of_the_response(
        self,
        trainable: Speculator,
        module: nn.Module,
        traces: list[Trace],
        num_speculative_tokens: int,
    ) -> None:
        """All from which a token can be drafted, or all with enough tokens after them to judge."""
        _, anchors = trainable.acceptance(module, trainable.collate(traces), num_speculative_tokens)
        for trace, count in zip(traces, anchors.tolist(), strict=True):
            num_response = len(trace.token_ids) - trace.prompt_len
            assert count in (num_response - 1, num_response - num_speculative_tokens)

    def test_the_served_drafter_is_right_where_replay_says_so(
        self,
        trainable: Speculator,
        module: nn.Module,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """Token by token: from every position, both draft the committed tokens equally far.

        Rows, positions, cached keys and the vocabulary map are then the same on both sides. Where
        a drafter chose to stop early or spent its nodes elsewhere, it cannot have been right more
        often than the replay.
        """
        depth = num_speculative_tokens
        accepted, anchors = trainable.acceptance(module, trainable.collate(traces), depth)
        drafter = serve(trainable, module)
        for index, trace in enumerate(traces):
            num_tokens = len(trace.token_ids)
            # Which of the two sets of positions this replay scores; see the test above.
            all_scored = int(anchors[index]) == num_tokens - trace.prompt_len - 1
            last = num_tokens - 1 if all_scored else num_tokens - depth
            right, is_whole, start = [0] * depth, True, 0
            for root in range(trace.prompt_len, last):
                (proposal,) = drafter.propose(
                    [
                        draft_request(
                            trace,
                            start,
                            root,
                            num_speculative_tokens=depth,
                            max_nodes=max_nodes,
                        )
                    ]
                )
                start = root
                path = best_path(proposal)
                is_whole = is_whole and len(path) == depth
                committed = trace.token_ids[root + 1 : root + 1 + depth].tolist()
                for place, (token, expected) in enumerate(zip(path, committed, strict=False)):
                    if token != expected:
                        break
                    right[place] += 1
            counted = accepted[index].tolist()
            assert right[0] == counted[0]
            if is_whole:
                assert right == counted
            assert all(mine <= theirs for mine, theirs in zip(right, counted, strict=True))

    def test_an_answer_learned_by_heart_is_accepted_whole_in_replay(
        self,
        trainable: Speculator,
        memorised: nn.Module,
        answer: Trace,
        num_speculative_tokens: int,
    ) -> None:
        accepted, anchors = trainable.acceptance(
            memorised, trainable.collate([answer]), num_speculative_tokens
        )
        for place, count in enumerate(accepted[0].tolist()):
            # The last drafts reach beyond the end, where a replay may count nothing.
            assert int(anchors[0]) - place <= count <= int(anchors[0])

    def test_an_answer_learned_by_heart_is_accepted_whole_when_served(
        self,
        trainable: Speculator,
        memorised: nn.Module,
        engine: ReferenceEngine,
        answer: Trace,
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """What was learned ends in accepted tokens: the likeliest path is never refused."""
        served = self._serve(
            engine, answer, serve(trainable, memorised), num_speculative_tokens, max_nodes
        )
        assert served.token_ids.tolist() == answer.token_ids.tolist()
        assert _refusals(served) == []
        assert int(served.steps.num_accepted.sum()) > len(served.steps.root) / 2

    def test_an_identical_drafter_keeps_the_acceptance_and_another_changes_it(
        self,
        trainable: Speculator,
        weights: TargetWeights,
        memorised: nn.Module,
        engine: ReferenceEngine,
        answer: Trace,
        tmp_path: Path,
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """Publish, load and swap in the middle of a request: nothing is lost. Then a new one."""
        trainable.save(memorised, tmp_path)
        known, published = (
            serve(trainable, memorised),
            serve(trainable, trainable.load(tmp_path, weights)),
        )
        untrained = serve(trainable, build(trainable, weights, [answer], seed=3))
        limits = (num_speculative_tokens, max_nodes)
        whole = self._serve(engine, answer, known, *limits)
        reloaded = self._serve(engine, answer, published, *limits)
        assert len(reloaded.steps.root) == len(whole.steps.root)
        worse = self._serve(engine, answer, untrained, *limits)
        assert len(worse.steps.root) > len(whole.steps.root)

    def test_training_afterwards_does_not_change_a_drafter(
        self,
        trainable: Speculator,
        module: nn.Module,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """It holds its own copy of the weights."""
        requests = dict(enumerate(traces))
        depths = dict.fromkeys(requests, num_speculative_tokens)
        drafter = serve(trainable, module)
        expected = draft_along(
            serve(trainable, module), requests, depths=depths, max_nodes=max_nodes
        )
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(-1.5).add_(0.1)
        found = draft_along(drafter, requests, depths=depths, max_nodes=max_nodes)
        for index, proposals in expected.items():
            for proposal, mine in zip(proposals, found[index], strict=True):
                require_equal(mine, proposal, f"request {index}")

    def test_what_is_learned_changes_what_is_drafted(
        self,
        trainable: Speculator,
        weights: TargetWeights,
        memorised: nn.Module,
        answer: Trace,
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        fresh = build(trainable, weights, [answer])
        found = [
            [
                list(proposal.token_ids)
                for proposal in draft_along(
                    serve(trainable, module),
                    {0: answer},
                    depths={0: num_speculative_tokens},
                    max_nodes=max_nodes,
                )[0]
            ]
            for module in (fresh, memorised)
        ]
        assert found[0] != found[1]

    def _serve(
        self,
        engine: ReferenceEngine,
        answer: Trace,
        drafter: Drafter,
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> Trace:
        return engine.serve(
            answer.token_ids[: answer.prompt_len].tolist(),
            drafter,
            max_tokens=len(answer.token_ids) - answer.prompt_len,
            num_speculative_tokens=num_speculative_tokens,
            max_nodes=max_nodes,
        )


def _refusals(trace: Trace) -> list[int]:
    """Return the steps in which not all of the likeliest path was accepted."""
    refused = []
    for step, num_accepted in enumerate(trace.steps.num_accepted.tolist()):
        [first, *_] = [*(trace.nodes.step == step).nonzero().flatten().tolist(), 0]
        mine = trace.nodes.step == step
        proposal = Proposal(
            token_ids=trace.nodes.token[mine].tolist(),
            parents=[max(-1, parent - first) for parent in trace.nodes.parent[mine].tolist()],
            log_probs=trace.nodes.log_prob[mine].tolist(),
        )
        path = best_path(proposal)
        root = int(trace.steps.root[step])
        committed = trace.token_ids[root + 1 : root + 1 + num_accepted].tolist()
        if committed[: len(path)] != path:
            refused.append(step)
    return refused
