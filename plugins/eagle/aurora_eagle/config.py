"""Options of the EAGLE-3 speculator."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from aurora_core.errors import ConfigError
from aurora_core.interfaces import Options
from aurora_core.records import TargetSpec
from aurora_eagle.published_config import NUM_AUX_LAYERS, read_published_config


class Eagle3Options(Options):
    """What a configuration can say below `speculator:` when its name is `eagle3`."""

    serving_only: ClassVar[frozenset[str]] = frozenset(
        {"min_confidence", "tree_width", "tree_nodes", "min_node_confidence"}
    )

    draft_vocab_size: int = Field(8192, ge=8)
    """Target tokens that the drafter can propose; a larger target vocabulary is cut to these."""
    training_steps: int = Field(4, ge=1, le=16)
    """Draft positions that training unrolls."""
    step_decay: float = Field(0.8, gt=0, le=1)
    """Weight of a draft position relative to the one before it, with `depth_weights: power`."""
    depth_weights: Literal["power", "reach"] = "reach"
    """What a draft position weighs: `reach` how often the drafter gets there at all, measured in
    each trace, `power` takes `step_decay` to the power of its number."""
    objective: Literal["kl", "lk_hybrid", "discard", "branches", "unlikelihood"] = "branches"
    """What is learned from. `kl`: forward KL to the target at committed positions. `lk_hybrid`: the
    same, going over to the acceptance rate itself as the two distributions come close. `discard`:
    `kl`, and beside it the mean over rejected draft nodes. `branches`: KL at committed and rejected
    nodes alike, the latter weighted by the chance that a request gets there. `unlikelihood`: tokens
    alone, for backends that record no target rows."""
    discard_weight: float = Field(0.1, ge=0)
    """`discard`: what all rejected nodes count beside all committed positions."""
    branch_floor: float = Field(0.1, ge=0, le=1)
    """`branches`: what a rejected node weighs at least beside a committed position."""
    refusal_weight: float = Field(0.1, ge=0)
    """`unlikelihood`: what pushing down a refused token counts beside raising the right one."""
    branch_ratio_limit: float | None = Field(None, gt=0)
    """`discard` and `branches`: weigh each rejected node by how much likelier the drafter in
    training is to go there than the one that did, at most by this; null does not correct."""
    max_branch_staleness: int | None = Field(None, ge=0)
    """`discard` and `branches`: leave out rejected nodes of drafters so many versions older than
    the newest in the batch; null takes all."""
    greedy_teacher: Literal["soft", "argmax"] = "soft"
    """What greedy requests teach: the target's distribution at temperature 1, or its best token."""
    aux_layers: tuple[int, int, int] | None = None
    """Layers of the target whose *entering* hidden states are read; None takes those of
    `start_from`, or the 3rd, the middle and the 3rd from the end, as EAGLE-3 does."""
    start_from: str | None = None
    """Published EAGLE-3 drafter of this target that a new run serves from its first request and
    goes on training: a directory in the native layout or that of `speculators`. It decides on
    `draft_vocab_size`."""
    start_from_layers: Literal["entering", "output"] | None = None
    """What layer ids in the config.json of a native `start_from` mean: what enters these layers, as
    vLLM takes them, or what leaves them, as SGLang does. Needed only where neither meaning gives
    the usual layers of EAGLE-3."""
    initialise_from_target: bool = True
    """Whether a new drafter starts from the target's head, norm and last layer."""
    max_trace_tokens: int = Field(2048, ge=16)
    """Longer traces are trained on their last positions only."""
    min_confidence: float = Field(0.3, ge=0, lt=1)
    """A chain, or a path of a tree, is not extended beyond a token where the probability of all of
    it, as the drafter sees it, has fallen below this; 0 always drafts to full depth. Worth about
    the cost of drafting and verifying one more token, in tokens."""
    tree_width: int = Field(1, ge=1, le=16)
    """Tokens by which a node is extended, and nodes that are extended at each depth: the drafts
    of a step form a tree that grows where the drafter is sure. 1 drafts chains."""
    tree_nodes: int = Field(16, ge=1, le=256)
    """Nodes of a tree at most, over all its branches: the best by path probability."""
    min_node_confidence: float = Field(0.05, ge=0, lt=1)
    """A node of a tree, or a token of a chain after its first, is not proposed if its path's
    probability, as the drafter sees it, is below this; sampled tokens always are. Worth about the
    cost of verifying one more token, in tokens."""
    export_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Storage type of published weights; the learner's own checkpoints are float32."""

    @property
    def uses_branches(self) -> bool:
        """Whether the objective learns from target rows of rejected draft nodes."""
        return self.objective in ("discard", "branches")

    @property
    def uses_teacher(self) -> bool:
        """Whether the objective learns from target rows at all, or from tokens alone."""
        return self.objective != "unlikelihood"


def choose_aux_layers(options: Eagle3Options, target: TargetSpec) -> tuple[int, ...]:
    """Return the layers to read, in the `entering` convention.

    Raises:
        ConfigError: the chosen layers do not exist, repeat or are not in order, the target is too
            shallow for a choice of its own, or `start_from` does not say enough.
        CheckpointError: the config.json of `start_from` is not what it should be.
    """
    num_layers = target.num_layers
    chosen = options.aux_layers
    if chosen is None and options.start_from is not None:
        folder = Path(options.start_from)
        return read_published_config(folder, target, options.start_from_layers).aux_layers
    if chosen is None:
        if num_layers >= 7:
            return (2, num_layers // 2, num_layers - 3)
        if num_layers >= 4:
            return (1, num_layers // 2, num_layers - 1)
        raise ConfigError(
            f"target {target.name!r} has only {num_layers} layers, too few to choose three from; "
            f"set `aux_layers` of speculator 'eagle3' to three of 0 to {num_layers}"
        )
    # Engines capture layers in the order in which they run, whatever the order of their ids.
    if not 0 <= chosen[0] < chosen[1] < chosen[2] <= num_layers:
        raise ConfigError(
            f"`aux_layers` of speculator 'eagle3' is {list(chosen)}, expected {NUM_AUX_LAYERS} "
            f"different layers from 0 to {num_layers} of target {target.name!r}, in their order"
        )
    return chosen
