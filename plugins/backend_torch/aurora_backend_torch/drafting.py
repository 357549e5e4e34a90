"""Asking the drafters: who gets a draft in this step, from which version, how long."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from aurora_backend_torch.active_request import ActiveRequest
from aurora_backend_torch.draft_tree import DraftTree
from aurora_backend_torch.verification import DRAFT_STREAM, uniforms
from aurora_core.interfaces import DraftRequest, Proposal
from aurora_core.records import NO_DRAFTER

logger = logging.getLogger(__name__)

REFILL_ROWS = 64
"""Rows that a drafter reads of a request that was running before the drafter was live."""

REFILLS_PER_STEP = 2
"""Requests that take up a new drafter in one step, so that a swap never stalls decoding."""


class Drafting:
    """Gives each decoding request a proposal, or none. Used from the engine thread only."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_draft_nodes: int,
        max_verification_rows: int | None,
        sample_drafts: bool,
    ) -> None:
        """
        Args:
            vocab_size: of the target.
            max_draft_nodes: draft tokens of one request, over all branches, at most.
            max_verification_rows: rows of one pass that verify drafts, over all requests; None is
                no limit.
            sample_drafts: whether drafters may sample where the request does.
        """
        self._vocab_size, self._max_nodes = vocab_size, max_draft_nodes
        self._max_verification_rows = max_verification_rows
        self._sample_drafts = sample_drafts

    def draft(self, decoding: Sequence[ActiveRequest]) -> None:
        """Set the proposal, its tree and its version of each request."""
        by_drafter: dict[tuple[str, int], list[ActiveRequest]] = {}
        refills = 0
        max_nodes = self.max_nodes(len(decoding))
        for active in decoding:
            active.proposal, active.tree, active.step_version = None, DraftTree((), ()), NO_DRAFTER
            active.asked_version = NO_DRAFTER
            version = self._version_for(active)
            if version == NO_DRAFTER or active.num_left < 2 or max_nodes < 1:
                continue
            if active.draft_version == version and active.pacing.skips():
                continue
            if active.draft_version != version and active.num_steps:
                if refills == REFILLS_PER_STEP:
                    continue
                refills += 1
            by_drafter.setdefault((active.request.lineage, version), []).append(active)
        for (_, version), requests in by_drafter.items():
            self._propose(version, requests, max_nodes)

    def max_nodes(self, num_decoding: int) -> int:
        """Return how many draft tokens each of so many requests may have in one pass."""
        if self._max_verification_rows is None or not num_decoding:
            return self._max_nodes
        return min(self._max_nodes, self._max_verification_rows // num_decoding - 1)

    def _version_for(self, active: ActiveRequest) -> int:
        chosen = active.request.drafter
        if chosen == "none":
            return NO_DRAFTER
        residents = active.lineage.residents
        version = residents.live_version if chosen == "live" else chosen
        return version if residents.get(version) is not None else NO_DRAFTER

    def _propose(self, version: int, requests: Sequence[ActiveRequest], max_nodes: int) -> None:
        """Ask one drafter for all its requests, which are of one lineage."""
        residents = requests[0].lineage.residents
        drafter = residents.get(version)
        if drafter is None:
            return
        asked = [self._draft_request(active, version, max_nodes) for active in requests]
        try:
            proposals = drafter.propose(asked)
            trees = [
                checked_tree(proposal, request, self._vocab_size)
                for proposal, request in zip(proposals, asked, strict=True)
            ]
        except Exception:
            logger.exception("drafter version %d failed; serving goes on without it", version)
            residents.drop_broken(version)
            return
        for active, proposal, tree in zip(requests, proposals, trees, strict=True):
            active.num_drafted_rows = len(active.token_ids) - 1
            active.asked_version = version
            if proposal.token_ids:
                active.proposal, active.tree, active.step_version = proposal, tree, version
            active.window.keep(REFILL_ROWS)

    def _draft_request(self, active: ActiveRequest, version: int, max_nodes: int) -> DraftRequest:
        root = len(active.token_ids) - 1
        if active.draft_version != version:
            if (old := active.lineage.residents.get(active.draft_version)) is not None:
                old.forget(active.request.request_id)
            active.draft_version = version
            active.pacing.begin_anew()
            # A request's first step reads its whole prompt; a running one only a window.
            active.num_drafted_rows = max(root - REFILL_ROWS, 0) if active.num_steps else 0
        start, features = active.window.since(active.num_drafted_rows)
        depth = min(active.lineage.num_speculative_tokens, max_nodes, active.num_left - 1)
        sampling = active.request.sampling
        samples = self._sample_drafts and sampling.temperature > 0
        return DraftRequest(
            request_id=active.request.request_id,
            start=start,
            token_ids=torch.tensor(active.token_ids[start:], dtype=torch.int64),
            features=features,
            num_speculative_tokens=depth,
            max_nodes=max_nodes,
            sampling=sampling if samples else None,
            uniforms=uniforms(active.seed, DRAFT_STREAM, root, depth) if samples else (),
        )


def checked_tree(proposal: Proposal, request: DraftRequest, vocab_size: int) -> DraftTree:
    """Return the tree of a proposal.

    Raises:
        ValueError: it would write beyond the cache or index beyond the vocabulary.
    """
    drafted = proposal.token_ids
    tree = DraftTree.of(proposal)
    if len(drafted) > request.max_nodes or tree.max_depth > request.num_speculative_tokens:
        raise ValueError(
            f"{len(drafted)} draft tokens {tree.max_depth} deep where {request.max_nodes} were "
            f"allowed, {request.num_speculative_tokens} deep"
        )
    if not all(0 <= token < vocab_size for token in drafted):
        raise ValueError(f"draft tokens {list(drafted)} are not all in the target's vocabulary")
    if len(proposal.log_probs) != len(drafted):
        raise ValueError(f"{len(proposal.log_probs)} log-probabilities for {len(drafted)} tokens")
    drawn_from = proposal.drawn_from
    if drawn_from is not None:
        wanted = (len(drafted), len(drawn_from.token_ids))
        if request.sampling is None or tuple(drawn_from.probs.shape) != wanted:
            raise ValueError(
                f"{len(drafted)} tokens were drawn from distributions of shape "
                f"{tuple(drawn_from.probs.shape)} where {wanted} was expected"
            )
    return tree
