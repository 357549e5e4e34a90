"""One request inside the engine: its tokens, its cache, and what is recorded of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aurora_backend_torch.capture import FeatureWindow, TraceRecorder
from aurora_backend_torch.draft_tree import DraftTree
from aurora_backend_torch.generation import GenerationRequest, StepOutput
from aurora_backend_torch.held_lineage import HeldLineage
from aurora_backend_torch.kv_cache import KVCache
from aurora_core.engine_process.step_counts import StepCounts
from aurora_core.interfaces import Proposal
from aurora_core.records import NO_DRAFTER, RequestStats


@dataclass(slots=True)
class ActiveRequest(StepCounts):
    """A running request. `token_ids` are committed; the last one has no row in the cache yet."""

    request: GenerationRequest
    on_output: Callable[[StepOutput], None]
    seed: int
    """For sampling; the request's own, or drawn on arrival."""
    cache: KVCache
    window: FeatureWindow
    recorder: TraceRecorder | None
    """None when no trace is written."""
    lineage: HeldLineage
    token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Rows of the target in the cache; the prompt is being prefilled while below its length."""
    draft_version: int = NO_DRAFTER
    """Version whose state of this request is current."""
    num_drafted_rows: int = 0
    """Rows that the drafter of `draft_version` has read."""
    proposal: Proposal | None = None
    """Draft tokens of the step in progress."""
    tree: DraftTree = field(default_factory=lambda: DraftTree((), ()))
    """Their shape."""
    step_version: int = NO_DRAFTER
    """Of the drafter that proposed them."""
    asked_version: int = NO_DRAFTER
    """Of the drafter that was asked in this step, whether or not it proposed anything."""

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def is_prefilling(self) -> bool:
        return self.num_computed < self.prompt_len and self.num_output_tokens == 0

    @property
    def num_left(self) -> int:
        """Output tokens that may still come."""
        return self.request.max_tokens - self.num_output_tokens

    def commit(self, new_token_ids: Sequence[int], now: float) -> None:
        """Append tokens of a finished step."""
        if not self.num_output_tokens:
            self.first_token_at = now
        self.last_token_at = now
        self.token_ids += new_token_ids

    def count_step(self, *, num_accepted: int, batch: int) -> None:
        """Count the verification step in progress."""
        # A drafter that is never sure enough to propose serves all the same.
        if self.asked_version != NO_DRAFTER:
            self.versions.add(self.asked_version)
        self.count(
            batch_size=batch,
            num_drafted=len(self.tree.token_ids),
            max_depth=self.tree.max_depth,
            num_accepted=num_accepted,
        )

    def stats(self, number: int, finish_reason: str, num_output_tokens: int) -> RequestStats:
        """Return the counts of a finished request."""
        return self.request_stats(
            sequence=number,
            request_id=self.request.request_id,
            arrived=self.request.arrived,
            finished=time.time(),
            num_prompt_tokens=self.prompt_len,
            num_output_tokens=num_output_tokens,
            finish_reason=finish_reason,
            tenant=self.request.tenant,
            route=self.request.route,
            lineage=self.request.lineage,
        )
