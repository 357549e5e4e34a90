"""A drafter beside the one that serves: it drafts, and what the target chose says how well.

token_ids of a request:  [ prompt | committed by whoever serves                      ]
the shadow's own steps:           r0 --drafts--> r1 --drafts--> r2 ...

A shadow drafts at its own roots. The next root is where its draft would have left the request,
known once the tokens there are committed; the features of the rows before it are known too. So it
takes the steps that it would have taken, and the request is untouched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aurora_backend_torch.active_request import ActiveRequest
from aurora_backend_torch.capture import FeatureWindow
from aurora_backend_torch.draft_tree import ROOT, DraftTree
from aurora_backend_torch.drafting import checked_tree
from aurora_backend_torch.pacing import Pacing
from aurora_core.interfaces import DraftRequest
from aurora_core.records import ShadowStats

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ShadowedRequest:
    """What a drafter has drafted beside one request."""

    active: ActiveRequest
    version: int
    pacing: Pacing
    """As it would be served: what the two are compared by is tokens per step."""
    window: FeatureWindow = field(default_factory=FeatureWindow)
    root: int = 0
    """Position that it drafts below next, or has drafted below."""
    num_drafted_rows: int = 0
    """Rows that the drafter has read."""
    tree: DraftTree | None = None
    """Drafts that are not judged yet."""
    num_steps: int = 0
    num_drafted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    draft_s: float = 0.0

    @property
    def drafter(self) -> tuple[str, int]:
        """Its lineage and its version there."""
        return self.active.request.lineage, self.version

    @property
    def name(self) -> str:
        """Name of the request in the drafter's state: it may be serving the request as well."""
        return f"{self.active.request.request_id}/shadow"

    def judge(self, *, is_final: bool = False) -> None:
        """Count the drafts as soon as the committed tokens say how many were right.

        Args:
            is_final: whether no further token comes. As in serving, the last one then is the
                target's own, whether or not a draft foresaw it.
        """
        if self.tree is None:
            return
        tokens, node, accepted = self.active.token_ids, ROOT, 0
        while self.tree.children(node):
            place = self.root + 1 + accepted
            if place == len(tokens):
                if not is_final or not accepted:
                    return
                accepted -= 1
                break
            child = self.tree.child(node, tokens[place])
            if child is None:
                break
            node, accepted = child, accepted + 1
        missing = self.tree.max_depth - len(self.accepted_per_position)
        self.accepted_per_position += [0] * missing
        for position in range(accepted):
            self.accepted_per_position[position] += 1
        self.num_steps += 1
        if self.tree.token_ids:
            self.num_drafted += len(self.tree.token_ids)
            self.pacing.judge(accepted)
        self.root += accepted + 1
        self.tree = None

    def stats(self) -> ShadowStats:
        """Return the counts, with what a request that is over says of the last drafts."""
        self.judge(is_final=True)
        if self.root == len(self.active.token_ids) - 2:
            self.num_steps += 1  # the last token of all comes without a draft
        return ShadowStats(
            version=self.version,
            num_steps=self.num_steps,
            num_drafted=self.num_drafted,
            accepted_per_position=tuple(self.accepted_per_position),
            draft_s=self.draft_s,
        )


class Shadowing:
    """Lets drafters draft in the shadow of requests. Used from the engine thread only."""

    def __init__(
        self,
        *,
        vocab_size: int,
        draft_patience: int,
    ) -> None:
        """
        Args:
            vocab_size: of the target.
            draft_patience: as of the requests themselves.
        """
        self._vocab_size, self._draft_patience = vocab_size, draft_patience
        self._shadowed: dict[str, ShadowedRequest] = {}

    def begin(self, active: ActiveRequest) -> None:
        """Shadow a request from its first row on, if it asks for that."""
        version = active.request.shadow
        # Where drafts are sampled, being accepted is no matter of the target's choice alone.
        if version is not None and active.request.sampling.rule != "rejection":
            pacing = Pacing(self._draft_patience)
            shadowed = ShadowedRequest(active, version, pacing, root=active.prompt_len)
            self._shadowed[active.request.request_id] = shadowed

    def keep_rows(
        self, active: ActiveRequest, start: int, num_rows: int, features: Mapping[str, Tensor]
    ) -> None:
        """Take in committed rows of a request; nothing if it has no shadow."""
        shadowed = self._shadowed.get(active.request.request_id)
        if shadowed is not None:
            shadowed.window.append(start, num_rows, features)

    def draft(self, max_nodes: int) -> None:
        """Draft once beside every request whose last drafts are judged and whose rows are known.

        One that is accepted less than the live drafter takes more steps than there are, and falls
        behind: its counts then cover the first part of a request.

        Args:
            max_nodes: draft tokens of one request, over all branches, at most.
        """
        by_drafter: dict[tuple[str, int], list[ShadowedRequest]] = {}
        for shadowed in list(self._shadowed.values()):
            shadowed.judge()
            if shadowed.tree is None and shadowed.root < len(shadowed.active.token_ids):
                if min(max_nodes, _num_left(shadowed) - 1) < 1:
                    continue
                if shadowed.pacing.skips():
                    shadowed.num_steps += 1
                    shadowed.root += 1
                    continue
                by_drafter.setdefault(shadowed.drafter, []).append(shadowed)
        for drafter, some in by_drafter.items():
            self._propose(drafter, some, max_nodes)

    def end(self, active: ActiveRequest) -> ShadowStats | None:
        """Forget a finished request; return what its shadow did, None without any."""
        shadowed = self._shadowed.pop(active.request.request_id, None)
        if shadowed is None:
            return None
        if (drafter := active.lineage.residents.get(shadowed.version)) is not None:
            drafter.forget(shadowed.name)
        return shadowed.stats()

    def _propose(
        self, which: tuple[str, int], some: Sequence[ShadowedRequest], max_nodes: int
    ) -> None:
        """Ask one drafter for all its requests, which are of one lineage."""
        residents, version = some[0].active.lineage.residents, which[1]
        drafter = residents.get(version)
        if drafter is None:
            self._give_up(which)
            return
        asked = [self._draft_request(shadowed, max_nodes) for shadowed in some]
        started = time.perf_counter()
        try:
            trees = [
                checked_tree(proposal, request, self._vocab_size)
                for proposal, request in zip(drafter.propose(asked), asked, strict=True)
            ]
        except Exception:
            # What failed in the shadow has served nobody, and must not.
            logger.exception("drafter version %d failed in the shadow", version)
            residents.drop_broken(version)
            self._give_up(which)
            return
        seconds = time.perf_counter() - started
        for shadowed, tree in zip(some, trees, strict=True):
            shadowed.num_drafted_rows = shadowed.root
            shadowed.window.forget_before(shadowed.root)
            shadowed.draft_s += seconds
            shadowed.tree = tree

    def _give_up(self, drafter: tuple[str, int]) -> None:
        for request_id, shadowed in list(self._shadowed.items()):
            if shadowed.drafter == drafter:
                del self._shadowed[request_id]

    def _draft_request(self, shadowed: ShadowedRequest, max_nodes: int) -> DraftRequest:
        start, features = shadowed.window.since(shadowed.num_drafted_rows)
        num_rows = shadowed.root - start
        return DraftRequest(
            request_id=shadowed.name,
            start=start,
            token_ids=torch.tensor(
                shadowed.active.token_ids[start : shadowed.root + 1], dtype=torch.int64
            ),
            features={name: rows[:num_rows] for name, rows in features.items()},
            num_speculative_tokens=min(
                shadowed.active.lineage.num_speculative_tokens, max_nodes, _num_left(shadowed) - 1
            ),
            max_nodes=max_nodes,
            sampling=None,
            uniforms=(),
        )


def _num_left(shadowed: ShadowedRequest) -> int:
    """Return the output tokens that may still come after the one at the root."""
    active = shadowed.active
    return active.request.max_tokens - (shadowed.root + 1 - active.prompt_len)
