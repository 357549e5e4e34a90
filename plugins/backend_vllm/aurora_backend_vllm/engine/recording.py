"""One request as the worker saw it: counts for its statistics, rows and steps for its trace."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from aurora_core.engine_process.step_counts import StepCounts
from aurora_core.records import RequestStats, Rows, Sampling, Trace

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_backend_vllm.engine.settings import EngineSettings
    from aurora_backend_vllm.engine.stopping import StopConditions


@dataclass(slots=True, kw_only=True)
class StepOutcome:
    """What one step of the engine did for one request."""

    start: int
    """Position of the first row that the target read."""
    num_rows: int
    drafts: Sequence[int]
    """Draft tokens in the last rows."""
    chosen: Sequence[int]
    """Tokens that the target chose: accepted drafts, then its own. Empty within a prompt."""
    version: int
    """Version that drafted; `NO_DRAFTER` without drafts."""
    draft_ms: float
    verify_ms: float
    finished_at: float
    """Unix seconds."""
    batch_size: int
    """Requests decoded together."""
    features: Mapping[str, Tensor]
    """By name, [num_rows, ...]; empty if nothing is recorded."""


@dataclass(slots=True, kw_only=True)
class RequestRecording(StepCounts):
    """Follows one request through the engine's steps."""

    request_id: str
    prompt: Sequence[int]
    sampling: Sampling
    stops: StopConditions
    arrived: float
    """Unix seconds."""
    tenant: str = ""
    route: str = ""
    drafts_wanted: bool = True
    stop_strings: Sequence[str] = ()
    recorded: bool = True
    """Whether a trace is made of it."""

    output: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length", "abort"] = "abort"
    """`abort` until the request has ended by itself."""
    steps: list[tuple[int, int, int, int, float, float]] = field(default_factory=list)
    """(root, version, bonus token, accepted, draft ms, verify ms)"""
    nodes: list[tuple[int, int, int, int, bool]] = field(default_factory=list)
    """(step, token, parent, depth, accepted)"""
    rows: list[tuple[int, int]] = field(default_factory=list)
    """(position, node), one of them -1."""
    features: list[Mapping[str, Tensor]] = field(default_factory=list)
    num_positions: int = 0
    """Positions below this one need no row any more: they have one, or none can come."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def has_begun(self) -> bool:
        """Whether the target has read all of its prompt."""
        return bool(self.output)

    def forget_trace(self) -> None:
        """Let go of the rows; the counts go on."""
        self.recorded = False
        self.steps, self.nodes, self.rows, self.features = [], [], [], []

    def take(self, step: StepOutcome) -> None:
        """Take in one step, in order."""
        num_accepted = max(len(step.chosen) - 1, 0)
        root = step.start + step.num_rows - 1 - len(step.drafts)
        first_node = len(self.nodes)
        is_step = bool(step.chosen) and bool(self.output)
        if is_step:
            self._count(step, num_accepted)
            if self.recorded:
                self._add_step(step, root, num_accepted)
        if self.recorded and step.features:
            self._add_rows(step, root + num_accepted + 1, first_node + num_accepted)
        self._commit(step)

    def _count(self, step: StepOutcome, num_accepted: int) -> None:
        num_drafted = len(step.drafts)
        self.count(
            batch_size=step.batch_size,
            num_drafted=num_drafted,
            max_depth=num_drafted,
            num_accepted=num_accepted,
        )
        if num_drafted:
            self.versions.add(step.version)

    def _add_step(self, step: StepOutcome, root: int, num_accepted: int) -> None:
        index, first = len(self.steps), len(self.nodes)
        self.steps.append(
            (root, step.version, step.chosen[-1], num_accepted, step.draft_ms, step.verify_ms)
        )
        for depth, token in enumerate(step.drafts, start=1):
            parent = -1 if depth == 1 else first + depth - 2
            self.nodes.append((index, token, parent, depth, depth <= num_accepted))

    def _add_rows(self, step: StepOutcome, end: int, first_rejected: int) -> None:
        """Map the step's rows: those before position `end` are committed, the rest are nodes.

        A request that was preempted is read again from the beginning: rows that are here stay.
        """
        committed = range(max(step.start, self.num_positions), end)
        skipped = min(committed.start, end) - step.start
        self.rows += [(position, -1) for position in committed]
        self.num_positions = max(self.num_positions, end)
        num_rejected = step.start + step.num_rows - end
        self.rows += [(-1, first_rejected + index) for index in range(num_rejected)]
        kept = step.num_rows - skipped
        if kept:
            # Copies, so that a request does not keep the rows of those it was batched with.
            self.features.append(
                {name: rows[skipped:].clone() for name, rows in step.features.items()}
            )

    def _commit(self, step: StepOutcome) -> None:
        if not step.chosen:
            return
        self.last_token_at = step.finished_at
        if not self.output:
            self.first_token_at = step.finished_at
        for token in step.chosen:
            self.output.append(token)
            reason = self.stops.reason(token, len(self.output))
            if reason is not None:
                # What the step would have added after a stop is cut off, as the scheduler does.
                self.finish_reason = reason
                return

    def ends_with_stop_string(self, text: str) -> None:
        """Judge a request that the server ended: with a stop string, or because its client left.

        Args:
            text: its whole output.
        """
        if self.finish_reason == "abort" and any(stop in text for stop in self.stop_strings):
            self.finish_reason = "stop"

    def statistics(self, sequence: int, now: float) -> RequestStats:
        """Return the counts of the finished request."""
        return self.request_stats(
            sequence=sequence,
            request_id=self.request_id,
            arrived=self.arrived,
            finished=now,
            num_prompt_tokens=len(self.prompt),
            num_output_tokens=len(self.output),
            finish_reason=self.finish_reason,
            tenant=self.tenant,
            route=self.route,
        )

    def trace(self, settings: EngineSettings) -> Trace:
        """Return the finished trace."""
        import torch

        from aurora_core.trace_columns import integers, nodes_of, steps_of

        # A row may have read a token that the end of the request cut off.
        kept = [
            index for index, (position, _) in enumerate(self.rows) if position < self.num_tokens
        ]
        rows = list(zip(*(self.rows[index] for index in kept), strict=True)) or [(), ()]
        names = self.features[0].keys() if self.features else ()
        features = {name: torch.cat([part[name] for part in self.features]) for name in names}
        if len(kept) < len(self.rows):
            features = {name: tensor[kept] for name, tensor in features.items()}
        return Trace(
            trace_id=self.request_id,
            request_key=hashlib.sha256(array("q", self.prompt).tobytes()).hexdigest()[:16],
            created=self.arrived,
            target_fingerprint=settings.target.fingerprint,
            tokenizer_fingerprint=settings.target.tokenizer_fingerprint,
            sampling=self.sampling,
            finish_reason=self.finish_reason,
            token_ids=integers([*self.prompt, *self.output]),
            prompt_len=len(self.prompt),
            steps=steps_of(self.steps),
            nodes=nodes_of([(*node, float("nan")) for node in self.nodes]),
            rows=Rows(position=integers(rows[0]), node=integers(rows[1])),
            features=features,
            aux_layers=settings.needs.aux_layers,
            tenant=self.tenant,
            route=self.route,
        )
