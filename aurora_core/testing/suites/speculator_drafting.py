"""What every drafter promises the engine that steps it, trained or not."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import TypedDict

import torch
from torch import nn

from aurora_core.interfaces import Proposal, Speculator
from aurora_core.records import TargetSpec, Trace
from aurora_core.testing.reference_engine import ReferenceEngine, draft_request
from aurora_core.testing.suites.speculator_fixtures import (
    CPU,
    DrafterMaker,
    SpeculatorFixtures,
    depths_of,
    draft_along,
    require_equal,
)


class Limits(TypedDict):
    """How long a proposal may be."""

    num_speculative_tokens: int
    max_nodes: int


class DraftingPromises(SpeculatorFixtures):
    """`Drafter`: proposals are well formed, bounded, and functions of the request alone."""

    def test_needs_are_constant_and_known_features(
        self, speculator: Speculator, target: TargetSpec
    ) -> None:
        needs = speculator.needs
        assert needs == speculator.needs
        assert needs.features <= {"aux_hidden_states", "last_hidden_state", "target_logsumexp"}
        assert bool(needs.aux_layers) == ("aux_hidden_states" in needs.features)
        assert all(0 <= layer <= target.num_layers for layer in needs.aux_layers)

    def test_topologies_and_formats_are_known_names(self, speculator: Speculator) -> None:
        assert speculator.topologies
        assert speculator.topologies <= {"chain", "tree"}
        assert "module" in speculator.formats or not speculator.trainable

    def test_proposals_are_well_formed(
        self,
        speculator: Speculator,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        target: TargetSpec,
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """Parents come first, siblings differ, tokens exist, probabilities are at most 1."""
        requests = dict(enumerate(traces))
        depths = dict.fromkeys(requests, num_speculative_tokens)
        found = draft_along(new_drafter(), requests, depths=depths, max_nodes=max_nodes)
        for proposal in [proposal for turns in found.values() for proposal in turns]:
            _require_sound(proposal, target.vocab_size)
            if speculator.topologies == {"chain"}:
                assert list(proposal.parents) == list(range(-1, len(proposal.token_ids) - 1))

    def test_something_is_proposed(
        self,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        requests = dict(enumerate(traces))
        depths = dict.fromkeys(requests, num_speculative_tokens)
        found = draft_along(new_drafter(), requests, depths=depths, max_nodes=max_nodes)
        assert any(proposal.token_ids for turns in found.values() for proposal in turns)

    def test_depth_and_nodes_stay_within_their_limits(
        self,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        for depth in range(num_speculative_tokens + 1):
            for budget in {0, 1, 2, max_nodes} if depth else {0}:
                requests = [
                    draft_request(
                        trace, 0, trace.prompt_len, num_speculative_tokens=depth, max_nodes=budget
                    )
                    for trace in traces
                ]
                for proposal in new_drafter().propose(requests):
                    assert max(depths_of(proposal), default=0) <= depth
                    assert len(proposal.token_ids) <= budget

    def test_proposals_do_not_depend_on_what_shares_the_batch(
        self,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        requests = dict(enumerate(traces))
        # Some requests of the batch draft to another depth, or only take rows in.
        depths = {
            index: (num_speculative_tokens, num_speculative_tokens, 1, 0)[index % 4]
            for index in requests
        }
        together = draft_along(new_drafter(), requests, depths=depths, max_nodes=max_nodes)
        for chosen in ([0], [1], [2, 0], [1, 3, 0]):
            some = {index: traces[index] for index in chosen}
            found = draft_along(new_drafter(), some, depths=depths, max_nodes=max_nodes)
            for index in chosen:
                for proposal, expected in zip(found[index], together[index], strict=True):
                    require_equal(proposal, expected, f"request {index} in the batch {chosen}")

    def test_proposals_are_deterministic(
        self,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """Neither a random state nor what the drafter served before plays a part."""
        requests = dict(enumerate(traces))
        depths = dict.fromkeys(requests, num_speculative_tokens)
        drafter = new_drafter()
        torch.manual_seed(1)
        first = draft_along(drafter, requests, depths=depths, max_nodes=max_nodes)
        for trace in traces:
            drafter.forget(trace.trace_id)
        torch.manual_seed(2)
        again = draft_along(drafter, requests, depths=depths, max_nodes=max_nodes)
        other = draft_along(new_drafter(), requests, depths=depths, max_nodes=max_nodes)
        for index in requests:
            for one, two, three in zip(first[index], again[index], other[index], strict=True):
                require_equal(two, one, "the same drafter, after forgetting")
                require_equal(three, one, "another drafter of the same weights")

    def test_rows_in_parts_are_rows_at_once(
        self,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """Prompts come in chunks, answers a few tokens at a time; it makes no difference."""
        limits = Limits(num_speculative_tokens=num_speculative_tokens, max_nodes=max_nodes)
        silent = Limits(num_speculative_tokens=0, max_nodes=0)
        for trace in traces:
            root = trace.prompt_len + 6
            chunks = new_drafter()
            chunks.propose([draft_request(trace, 0, 3, **silent)])
            chunks.propose([draft_request(trace, 3, trace.prompt_len, **limits)])
            chunks.propose([draft_request(trace, trace.prompt_len, root - 1, **limits)])
            (in_parts,) = chunks.propose([draft_request(trace, root - 1, root, **limits)])
            (at_once,) = new_drafter().propose([draft_request(trace, 0, root, **limits)])
            require_equal(in_parts, at_once, "rows in parts, and drafts in between")

    def test_a_request_may_begin_in_its_middle(
        self,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        target: TargetSpec,
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """After a swap a drafter is given the last rows only, or finds a gap behind what it has."""
        limits = Limits(num_speculative_tokens=num_speculative_tokens, max_nodes=max_nodes)
        trace, joined, gapped = traces[1], new_drafter(), new_drafter()
        start, root = trace.prompt_len - 2, trace.prompt_len + 5
        (window,) = joined.propose([draft_request(trace, start, root, **limits)])
        _require_sound(window, target.vocab_size)
        gapped.propose([draft_request(trace, 0, 4, **limits)])
        (after_gap,) = gapped.propose([draft_request(trace, start, root, **limits)])
        _require_sound(after_gap, target.vocab_size)
        for drafter in (joined, gapped):
            (following,) = drafter.propose([draft_request(trace, root, root + 2, **limits)])
            _require_sound(following, target.vocab_size)

    def test_a_forgotten_request_leaves_nothing_behind(
        self,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        limits = Limits(num_speculative_tokens=num_speculative_tokens, max_nodes=max_nodes)
        drafter = new_drafter()
        drafter.forget("never seen")
        drafter.propose([draft_request(traces[0], 0, 12, request_id="one", **limits)])
        drafter.forget("one")
        drafter.forget("one")
        mine = draft_request(traces[1], 0, 14, request_id="one", **limits)
        (reused,) = drafter.propose([mine])
        (fresh,) = new_drafter().propose([mine])
        require_equal(reused, fresh, "an id that was used before")

    def test_requests_are_kept_apart(
        self,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """Two requests that take turns draft as each would alone."""
        limits = Limits(num_speculative_tokens=num_speculative_tokens, max_nodes=max_nodes)
        shared, alone = new_drafter(), (new_drafter(), new_drafter())
        for turn in range(3):
            for index, trace in enumerate(traces[:2]):
                root = trace.prompt_len + 2 * turn
                start = 0 if turn == 0 else root - 2
                request = draft_request(trace, start, root, **limits)
                (mine,) = shared.propose([request])
                (expected,) = alone[index].propose([request])
                require_equal(mine, expected, f"turn {turn} of request {index}")

    def test_no_requests_are_no_proposals(self, new_drafter: DrafterMaker) -> None:
        assert list(new_drafter().propose([])) == []

    def test_what_the_engine_gives_stays_as_it_is(
        self,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        request = draft_request(
            copy.deepcopy(traces[0]),
            0,
            traces[0].prompt_len,
            num_speculative_tokens=num_speculative_tokens,
            max_nodes=max_nodes,
        )
        before = copy.deepcopy(request)
        new_drafter().propose([request])
        assert torch.equal(request.token_ids, before.token_ids)
        for name, feature in before.features.items():
            assert torch.equal(request.features[name].nan_to_num(), feature.nan_to_num()), name

    def test_bfloat16_is_served_too(
        self,
        speculator: Speculator,
        module: nn.Module,
        traces: list[Trace],
        target: TargetSpec,
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        drafter = speculator.drafter(module, dtype=torch.bfloat16, device=CPU)
        half = [
            dataclasses.replace(
                trace,
                features={
                    name: rows if name == "target_logsumexp" else rows.bfloat16()
                    for name, rows in trace.features.items()
                },
            )
            for trace in traces
        ]
        requests = dict(enumerate(half))
        depths = dict.fromkeys(requests, num_speculative_tokens)
        found = draft_along(drafter, requests, depths=depths, max_nodes=max_nodes)
        for proposal in [proposal for turns in found.values() for proposal in turns]:
            _require_sound(proposal, target.vocab_size)

    def test_finished_requests_can_be_observed(
        self,
        new_drafter: DrafterMaker,
        traces: list[Trace],
        target: TargetSpec,
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        drafter = new_drafter()
        for trace in traces:
            drafter.observe(trace)
        requests = dict(enumerate(traces))
        depths = dict.fromkeys(requests, num_speculative_tokens)
        found = draft_along(drafter, requests, depths=depths, max_nodes=max_nodes)
        for proposal in [proposal for turns in found.values() for proposal in turns]:
            _require_sound(proposal, target.vocab_size)

    def test_a_whole_request_is_served_and_its_output_is_the_targets_own(
        self,
        new_drafter: DrafterMaker,
        engine: ReferenceEngine,
        traces: list[Trace],
        num_speculative_tokens: int,
        max_nodes: int,
    ) -> None:
        """Any drafter may speed an answer up, none may change it; a swap comes in its middle."""
        for trace in traces[:2]:
            served = engine.serve(
                trace.token_ids[: trace.prompt_len].tolist(),
                new_drafter(),
                max_tokens=len(trace.token_ids) - trace.prompt_len,
                num_speculative_tokens=num_speculative_tokens,
                max_nodes=max_nodes,
                drafters_later=[(9, new_drafter())],
            )
            assert served.token_ids.tolist() == trace.token_ids.tolist()


def _require_sound(proposal: Proposal, vocab_size: int) -> None:
    """Check everything that holds for a single proposal."""
    num_nodes = len(proposal.token_ids)
    assert len(proposal.parents) == len(proposal.log_probs) == num_nodes
    siblings = set()
    for node, (token, parent) in enumerate(zip(proposal.token_ids, proposal.parents, strict=True)):
        assert -1 <= parent < node, "parents come before their children"
        assert 0 <= token < vocab_size, "tokens are ids of the target"
        assert (parent, int(token)) not in siblings, "siblings differ"
        siblings.add((parent, int(token)))
    for log_prob in proposal.log_probs:
        assert not math.isnan(log_prob), "log-probabilities are numbers"
        assert log_prob <= 1e-4, "log-probabilities are at most 0"
