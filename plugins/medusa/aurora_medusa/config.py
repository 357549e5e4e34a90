"""Options of the Medusa speculator."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from aurora_core.interfaces import Options

NUM_RANKS = 8
"""Best tokens of a head that a tree can hold; fewer where the draft vocabulary has fewer."""

MAX_TREE_NODES = 64
"""Nodes of the largest tree that is ever built."""


class MedusaOptions(Options):
    """What a configuration can say below `speculator:` when its name is `medusa`."""

    num_heads: int = Field(5, ge=1, le=16)
    """Tokens that a draft can look ahead: no draft is deeper, whatever `num_speculative_tokens`
    says."""
    num_blocks: int = Field(1, ge=1, le=4)
    """Residual blocks of each head."""
    own_heads: bool = False
    """Whether every head trains an output head of its own, `draft_vocab_size` rows each, instead of
    sharing the target's frozen one."""
    draft_vocab_size: int = Field(8192, ge=8)
    """Target tokens that the drafter can propose; a larger target vocabulary is cut to these."""
    head_decay: float = Field(0.8, gt=0, le=1)
    """Weight of a head in the loss relative to the one before it."""
    greedy_teacher: Literal["soft", "argmax"] = "soft"
    """What greedy requests teach: the target's distribution at temperature 1, or its best token."""
    tree: Literal["chain", "static", "adaptive"] = "adaptive"
    """Shape of proposals: each head's best token, a fixed small tree, or the tree that the measured
    accuracies of the heads' best tokens make the best one."""
    tree_nodes: int = Field(16, ge=1, le=MAX_TREE_NODES)
    """Nodes of a tree, at most; an engine may allow fewer."""
    min_reach: float = Field(0.1, ge=0, lt=1)
    """Estimated chance of being accepted below which a draft token beyond the first is not
    proposed; a static tree is proposed whole. Worth about the cost of verifying one more token, in
    tokens."""
    max_trace_tokens: int = Field(2048, ge=16)
    """Longer traces are trained on their last positions only."""
    start_from: str | None = None
    """Published Medusa heads of this target to start a new drafter from: a directory or a file,
    safetensors or torch, in the names of FasterDecoding or vLLM. They decide on `num_heads`,
    `num_blocks` and `own_heads`."""
    export_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Storage type of published weights; the learner's own checkpoints are float32."""
