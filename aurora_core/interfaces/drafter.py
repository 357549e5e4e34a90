"""What a speculator hands to an engine: proposals of draft tokens, step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aurora_core.records import Sampling, Trace

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """What one request adds to its drafter before it drafts.

    The drafter has read rows [0, start) of this request already, or nothing at all: a first call
    may begin at start > 0, after a swap in mid-request, and then has only the window it is given.
    """

    request_id: str
    start: int
    """Position of the first new row."""
    token_ids: Tensor
    """int64 [m + 1]. Tokens at positions start .. start + m; the last one is the root."""
    features: Mapping[str, Tensor]
    """Features of the m rows start .. start + m - 1, by `FeatureName`, each [m, ...]."""
    num_speculative_tokens: int
    """Upper bound on the depth of the proposal; 0 only takes the rows in."""
    max_nodes: int
    """Upper bound on the nodes of the proposal, over all its branches."""
    sampling: Sampling | None = None
    """The request's own, when its drafts may be sampled; None asks for the likeliest tokens. A
    drafter that never samples ignores it."""
    uniforms: Sequence[float] = ()
    """With `sampling`: [num_speculative_tokens] numbers in [0, 1) to sample with, one per depth;
    all randomness of the proposal comes from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Draft nodes of one request, parents before children."""

    token_ids: Sequence[int]
    """[n] Target vocabulary ids."""
    parents: Sequence[int]
    """[n] Index of the parent in this proposal, -1 for children of the root."""
    log_probs: Sequence[float]
    """[n] Log-probability under the drafter given the parent's path."""
    drawn_from: DraftDistributions | None = None
    """Set when the tokens were sampled; without it they are deterministic, and verified so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftDistributions:
    """What sampled draft tokens were drawn from: rejection sampling needs all of it."""

    token_ids: Tensor
    """int64 [m]. The target ids that any of them could have been."""
    probs: Tensor
    """float32 [n, m]. For each node, the probabilities it was drawn with; the same for siblings,
    which are drawn independently of each other and may be equal."""


class Drafter(ABC):
    """Proposes draft tokens, step by step, for many requests at once. Used from one thread."""

    @abstractmethod
    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Take in the new rows of each request and return one proposal for each, in order.

        Proposals are deterministic functions of the tokens and features given, and do not depend
        on which requests are batched together.
        """

    @abstractmethod
    def forget(self, request_id: str) -> None:
        """Drop the state of a finished request; unknown ids are ignored."""

    def observe(self, trace: Trace) -> None:  # noqa: B027 - most drafters learn by gradient only
        """Learn from a finished request without gradients."""
