"""The four components a plugin can provide, and the drafter a speculator hands to an engine.

Components are found by hook (`aurora_core.hookspecs`), selected by name in the configuration and
built from their own validated options. Modules that define components import without torch: the
controller builds them too. Import torch inside the methods that need it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import ConfigDict

from aurora_core.config_section import StrictNumbers
from aurora_core.errors import BackendError
from aurora_core.records import (
    BackendStatus,
    DraftVersion,
    Evidence,
    Needs,
    Provides,
    RequestStats,
    Route,
    Sampling,
    SinkStats,
    SwapReceipt,
    TargetSpec,
    Trace,
    Verdict,
)
from aurora_core.serve_plan import LineagePlan, ServePlan

__all__ = [
    "Backend",
    "Component",
    "DraftDistributions",
    "DraftRequest",
    "Drafter",
    "LineagePlan",
    "LossOutput",
    "Options",
    "Proposal",
    "ServePlan",
    "Speculator",
    "SwapPolicy",
    "TraceReader",
    "TraceSink",
    "TraceWriter",
]

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from aurora_core.target.weights import TargetWeights


class Options(StrictNumbers):
    """Base of every component's options: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    serving_only: ClassVar[frozenset[str]] = frozenset()
    """Options of a speculator that say how to draft with given weights: they may change while a
    lineage goes on. A change of any other begins a new one."""


class Component:
    """A class that a config section selects by name and builds from its own options."""

    Config: ClassVar[type[Options]] = Options

    def __init__(self, options: Options) -> None:
        self.options = options


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """One batch's loss as sums, so that several batches or ranks add up to the true mean."""

    loss_sum: Tensor
    """float32 []. Differentiable; divide by `weight_sum` for the mean."""
    weight_sum: Tensor
    """float32 []. Detached; 0 when the batch supervises nothing."""
    num_tokens: int
    """Supervised response positions."""
    metrics: Mapping[str, Tensor]
    """Name -> float32 [] means for the log."""


class Speculator(Component, ABC):
    """A drafter algorithm: what to record, how to learn from it, how to draft.

    The engine uses `needs`, `load` and `drafter`; the learner uses the rest. One instance serves
    one target.
    """

    topologies: frozenset[str] = frozenset({"chain"})
    """Shapes of the proposals of this configuration, `chain` or `tree`; both where the same
    weights can be drafted with in either way and an engine may choose."""
    formats: ClassVar[frozenset[str]] = frozenset({"module"})
    """Checkpoint formats that `save` writes: `module` plus names of engine layouts."""
    export_formats: ClassVar[frozenset[str]] = frozenset()
    """Further layouts that `export` makes of what `save` wrote."""
    trainable: ClassVar[bool] = True
    """False for algorithms that learn by `Drafter.observe` alone: nothing is published, and an
    engine drafts from its start with what `build_module(weights, ())` gives."""

    def __init__(self, options: Options, target: TargetSpec) -> None:
        super().__init__(options)
        self.target = target

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """Return what must be recorded. Read once, before anything is loaded."""

    @property
    def starts_trained(self) -> bool:
        """Whether `build_module(weights, ())` gives a drafter that was trained already.

        A published one for example. A new run serves it from its first request then.
        """
        return False

    @abstractmethod
    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        """Return a fresh drafter for a new lineage, float32, on CPU.

        Args:
            weights: lazily loaded tensors of the target, to share or to initialise from.
            traces: the first traces, from which to choose a draft vocabulary or statistics;
                whatever is chosen is stored in the module and never changes in the lineage.
        """

    @abstractmethod
    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        """Pad and stack traces into one batch on CPU.

        Raises:
            TraceError: a trace lacks a needed feature or holds non-finite values; the learner
                skips and counts it.
        """

    @abstractmethod
    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        """Return the training loss of one batch. Must not change `batch`."""

    @abstractmethod
    def acceptance(
        self, module: nn.Module, batch: Mapping[str, Tensor], num_speculative_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Replay greedy drafting from every committed response position, without gradients.

        Returns:
            (accepted, anchors): int64 [B, K], the anchors of each trace whose first k drafts
            were all right, and int64 [B], the anchors scored.
        """

    @abstractmethod
    def save(self, module: nn.Module, path: Path) -> None:
        """Write config.json and model.safetensors, self-contained and with every flag explicit."""

    @abstractmethod
    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        """Read what `save` wrote.

        Raises:
            CheckpointError: a missing, extra, misshaped or non-finite tensor, or a checkpoint of
                another target or vocabulary; nothing is loaded then.
        """

    def export(
        self, checkpoint: Path, folder: Path, *, layout: str, num_speculative_tokens: int
    ) -> None:
        """Write a checkpoint in another layout, without loading the target.

        Args:
            checkpoint: what `save` wrote; whole, its checksum was compared.
            folder: exists and is empty.
            layout: one of `export_formats`.
            num_speculative_tokens: for layouts that say how deep to draft.

        Raises:
            CheckpointError: the layout cannot hold this drafter.
        """
        raise NotImplementedError(f"{type(self).__name__} has no layout {layout!r}")

    @classmethod
    def serving_command(
        cls, folder: Path, *, layout: str, target: str, num_speculative_tokens: int
    ) -> Sequence[str]:
        """Return how an engine without Aurora serves what was exported; `aurora export` prints it.

        Args:
            folder: that was written.
            layout: one of `formats` or `export_formats`.
            target: directory or hub id.
            num_speculative_tokens: how deep to draft.

        Returns:
            Program and arguments; none for a layout that only Aurora loads.
        """
        return ()

    @abstractmethod
    def drafter(self, module: nn.Module, *, dtype: torch.dtype, device: torch.device) -> Drafter:
        """Return a proposer that an engine steps, holding its own copy of the weights."""


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


class Backend(Component, ABC):
    """A serving engine seen from outside. Methods are called from one asyncio event loop."""

    @property
    @abstractmethod
    def provides(self) -> Provides:
        """Return what the engine can do. Read once, before anything is started."""

    @property
    def to_swap(self) -> str:
        """Return what a person has to do before a version can go live.

        For engines whose `hot_swap` is `restart`: the end of a sentence about a version that
        would go live. `swap` is not called there.
        """
        return ""

    @property
    @abstractmethod
    def url(self) -> str:
        """Return the base URL of the OpenAI-compatible API, without `/v1`."""

    def check(self) -> None:
        """See that this machine has what the options name; start nothing that serves. Blocks.

        For what options alone cannot tell, as devices, addresses and other environments. `aurora
        check` calls it, so `start` should refuse the same in the same words.

        Raises:
            BackendError: the first thing that would keep `start` from succeeding.
        """
        return

    @abstractmethod
    async def start(self, plan: ServePlan) -> None:
        """Launch the engine, or attach to a running one; return once it answers.

        Raises:
            BackendError: it does not come up; nothing is left running then.
        """

    @abstractmethod
    async def swap(self, version: DraftVersion | None) -> SwapReceipt:
        """Make a version live, or switch speculation off with None. All or nothing.

        Raises:
            BackendError: refused, or the checksum read back differs; the previous drafter serves.
        """

    async def route(self, routes: Sequence[Route]) -> None:
        """Give shares of the requests to other drafters, or to none; the rest goes to the live one.

        Only for engines that provide `request_routing`. Which request goes where is drawn at
        random, for shadow routes apart from all others: those need `shadow_drafting`. Replaces the
        routes before; drafters that no route names any more may be let go of.
        A route to a version that goes live is to be given up by the caller.

        Args:
            routes: shares that add up to 1 at most; none gives everything to the live drafter.

        Raises:
            BackendError: a drafter cannot be loaded beside the live one; the routes before stay.
        """
        if routes:
            raise BackendError("this engine cannot route requests to chosen drafters")

    def lineage(self, name: str) -> Backend:
        """Return this engine as one lineage sees it: its swaps, its routes, its status.

        Only for engines that provide `holds_lineages`. What is not a lineage's alone, as `finished`
        and `stop`, is left to the engine itself.

        Args:
            name: of a lineage in the plan that the engine was or will be started with.

        Raises:
            BackendError: this engine holds the default lineage alone.
        """
        raise BackendError(f"this engine holds one lineage of drafters: there is no {name!r}")

    @abstractmethod
    async def status(self) -> BackendStatus:
        """Return the live version, its checksum and the load, read from the engine."""

    @abstractmethod
    async def finished(self, after: int) -> list[RequestStats]:
        """Return requests that finished with `sequence > after`, oldest first."""

    @abstractmethod
    async def stop(self) -> None:
        """Release the engine. Callable twice, and after a failed `start`."""


class TraceSink(Component, ABC):
    """The bounded buffer between serving and learning: the replay of actor-learner RL.

    Writers and readers are opened from the sink's URL in other processes, so that the engine's
    half needs nothing of the learner's.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Return an address that `open_writer` and `open_reader` understand elsewhere."""

    def check(self) -> None:
        """See that `prepare` would succeed; create nothing. `aurora check` calls it.

        Raises:
            TraceError: it would not, in the words of `prepare`.
        """
        return

    def prepare(self) -> None:
        """Create what the ends will need. The controller calls it before it starts any process.

        Raises:
            TraceError: it cannot be created or written.
        """

    @abstractmethod
    def open_writer(self) -> TraceWriter:
        """Return the engine's end."""

    @abstractmethod
    def open_reader(self) -> TraceReader:
        """Return the learner's end."""

    @abstractmethod
    def stats(self) -> SinkStats:
        """Return what is held and what was shed, over all writers."""


class TraceWriter(ABC):
    """The engine's end of a sink. Never blocks: a trace that finds no room is shed and counted."""

    @abstractmethod
    def put(self, trace: Trace) -> bool:
        """Hand over a finished trace; False if it was shed. Returns in microseconds."""

    @abstractmethod
    def stats(self) -> SinkStats:
        """Return this writer's counts."""

    @abstractmethod
    def close(self) -> None:
        """Write what was handed over, then release the sink. Callable twice."""


class TraceReader(ABC):
    """The learner's end of a sink."""

    @abstractmethod
    def poll(self) -> int:
        """Take in traces that arrived since the last call; return how many."""

    @abstractmethod
    def sample(self, num_traces: int, *, fresh: int) -> list[Trace]:
        """Return up to `num_traces` training traces, at most `fresh` of them never seen before.

        The rest are drawn at random from those seen. Held-out traces are never returned. Fewer
        than asked, or none, come back when the sink holds too few.
        """

    @abstractmethod
    def holdout(self, num_traces: int) -> list[Trace]:
        """Return the newest held-out traces, oldest first."""

    @abstractmethod
    def iterate(self) -> Iterator[Trace]:
        """Yield every readable trace, oldest first; for offline experiments."""

    @property
    @abstractmethod
    def num_training(self) -> int:
        """Training traces held now."""

    @abstractmethod
    def state_dict(self) -> dict[str, object]:
        """Return the cursor and random state, JSON-serialisable, for resuming."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue where `state_dict` was taken; traces that are gone by now are forgotten."""


class SwapPolicy(Component, ABC):
    """Judges whether new weights go live, and when to go back. Pure: no I/O and no clock."""

    needs_routing: bool = False
    """Whether it sends a share of the requests to a candidate: a configuration with a backend that
    cannot is refused."""
    needs_shadow: bool = False
    """Whether it has a candidate draft in the shadow; refused likewise."""

    @abstractmethod
    def decide(self, evidence: Evidence) -> Verdict:
        """Judge a candidate. Equal evidence gives an equal verdict."""
