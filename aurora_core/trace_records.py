"""One request as the serving engine saw it: the boundary between engines and algorithms.

Shape legend (logical dimensions, never shards):
    T  tokens in a trace: prompt and response    S  verification steps in a trace
    N  draft nodes over all steps of a trace     R  captured rows of the target
    D  target hidden size                        L  captured target layers

Import these from `aurora_core.records`, as all records. This module imports without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

TRACE_SCHEMA = 1
"""Version of the trace layout; a reader refuses any other."""

NO_DRAFTER = -1
"""Draft version of a verification step that ran without speculation, or with drafts of no
version."""

VerificationRule = Literal["greedy", "point_mass", "rejection", "greedy_always"]
"""How an engine accepts draft tokens.

    greedy         accept while the draft token is the target's argmax
    point_mass     drafts are deterministic: accept with the target's probability of the token
    rejection      drafts are sampled: accept with min(1, target / draft), residual on rejection
    greedy_always  verifies greedily whatever the request's temperature: not lossless when sampling
"""

FeatureName = Literal["aux_hidden_states", "last_hidden_state", "target_logsumexp"]
"""Features of a target row.

    aux_hidden_states  [R, L*D] hidden states *entering* the named layers, concatenated in order;
                       layer id == number of layers means the last layer's output before the norm
    last_hidden_state  [R, D] input of the target's output head, after its final norm
    target_logsumexp   float32 [R] logsumexp of the target's logits over the whole vocabulary, so
                       exact probabilities follow from `last_hidden_state` and any rows of the head;
                       NaN at prompt positions before the last, whose logits nobody needs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of one request and the rule that verified its drafts."""

    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    seed: int | None = None
    rule: VerificationRule = "greedy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Verification steps of one trace, in order. All tensors have leading dimension S."""

    root: Tensor
    """int64 [S]. Position of the last committed token before the step; drafts hang below it."""
    version: Tensor
    """int64 [S]. Draft version in force; `NO_DRAFTER` for a plain decoding step, and for drafts
    of something that the run does not publish."""
    bonus_token: Tensor
    """int64 [S]. The target's own token after the last accepted draft token."""
    num_accepted: Tensor
    """int64 [S]. Accepted draft tokens, without the bonus token."""
    draft_ms: Tensor
    """float32 [S]. Milliseconds spent drafting; the batch's time when requests are batched."""
    verify_ms: Tensor
    """float32 [S]. Milliseconds of the target pass of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Draft tokens over all steps of one trace, parents before children. Leading dimension N."""

    step: Tensor
    """int64 [N]. Index into `Steps`; non-decreasing."""
    token: Tensor
    """int64 [N]. Target vocabulary id."""
    parent: Tensor
    """int64 [N]. Index of the parent node, -1 for a child of the step's root token."""
    depth: Tensor
    """int64 [N]. 1 for a child of the root; the node's position is root + depth."""
    accepted: Tensor
    """bool [N]."""
    log_prob: Tensor
    """float32 [N]. Log-probability under the drafter, NaN if the engine does not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Which token each captured row of the target had just read. Leading dimension R.

    The set of valid rows is explicit: nothing is inferred from lengths. Exactly one of
    `position` and `node` is >= 0 in a row.
    """

    position: Tensor
    """int64 [R]. Committed position in `token_ids`, or -1."""
    node: Tensor
    """int64 [R]. Index of a *rejected* node in `Nodes`, or -1. Accepted nodes are positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One finished request, as the serving engine saw it."""

    trace_id: str
    """Globally unique; a sink drops a second trace with the same id."""
    request_key: str
    """Hash of the prompt: equal prompts fall on the same side of the holdout split."""
    created: float
    """Unix seconds at which the request arrived."""
    target_fingerprint: str
    tokenizer_fingerprint: str
    sampling: Sampling
    finish_reason: Literal["stop", "length", "abort"]
    token_ids: Tensor
    """int64 [T]. The prompt, then every token the target committed."""
    prompt_len: int
    """Positions before this index are context: they carry no loss."""
    steps: Steps
    nodes: Nodes
    rows: Rows
    features: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors by `FeatureName`, each [R, ...] and aligned with `rows`."""
    aux_layers: tuple[int, ...] = ()
    """Layer ids of `aux_hidden_states`, in the `entering` convention."""
    tenant: str = ""
    route: str = ""
    schema: int = TRACE_SCHEMA
