"""One request as the scheduler saw it: counts for its statistics, rows and steps for its trace."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from aurora_backend_sglang.engine.verification import ROOT, VerifiedStep
from aurora_core.engine_process.step_counts import StepCounts
from aurora_core.records import RequestStats, Rows, Sampling, Trace

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_backend_sglang.engine.settings import EngineSettings

FinishReason = Literal["stop", "length", "abort"]


@dataclass(slots=True, kw_only=True)
class RequestRecording(StepCounts):
    """Follows one request through the engine's steps."""

    request_id: str
    prompt: Sequence[int]
    sampling: Sampling
    arrived: float
    """Unix seconds."""
    tenant: str = ""
    route: str = ""
    recorded: bool = True
    """Whether a trace is made of it."""

    steps: list[tuple[int, int, int, int, float, float]] = field(default_factory=list)
    """(root, version, bonus token, accepted, draft ms, verify ms)"""
    nodes: list[tuple[int, int, int, int, bool]] = field(default_factory=list)
    """(step, token, parent, depth, accepted)"""
    rows: list[tuple[int, int]] = field(default_factory=list)
    """(position, node), one of them -1."""
    features: list[Mapping[str, Tensor]] = field(default_factory=list)
    positions: set[int] = field(default_factory=set)
    """Positions that have a row."""

    def add_prefix(self, start: int, num_rows: int, features: Mapping[str, Tensor]) -> None:
        """Take in rows of committed tokens, of the prompt or of a request that was read again.

        Rows that are here stay: a request that made room for others is read again from the start.

        Args:
            start: position of the first row; above 0 where the cache had the rows before it.
            num_rows: rows read.
            features: by name, each [num_rows, ...].
        """
        if self.recorded and features:
            new = [i for i in range(num_rows) if start + i not in self.positions]
            self._add_rows([(start + i, -1) for i in new], new, features)

    def add_step(self, step: VerifiedStep) -> None:
        """Take in a verification step, in order."""
        self.count(
            batch_size=step.batch_size,
            num_drafted=len(step.draft.tokens),
            max_depth=max(step.draft.depths, default=0),
            num_accepted=len(step.accepted),
        )
        self.last_token_at = step.finished_at
        self.versions.add(step.version)
        if not self.recorded:
            return
        index, first = len(self.steps), len(self.nodes)
        accepted = set(step.accepted)
        self.steps.append(
            (
                step.root,
                step.version,
                step.bonus_token,
                len(accepted),
                step.draft_ms,
                step.verify_ms,
            )
        )
        columns = zip(step.draft.tokens, step.draft.parents, step.draft.depths, strict=True)
        rows = [(step.root, -1)]
        for node, (token, parent, depth) in enumerate(columns):
            above = ROOT if parent == ROOT else first + parent
            self.nodes.append((index, token, above, depth, node in accepted))
            rows.append((step.root + depth, -1) if node in accepted else (-1, first + node))
        if step.features:
            new = [i for i, (position, _) in enumerate(rows) if position not in self.positions]
            self._add_rows([rows[i] for i in new], new, step.features)

    def first_token(self, now: float) -> None:
        """Note that the prompt has been read and the first token is there."""
        self.first_token_at = self.last_token_at = now

    def drop_trace(self) -> None:
        """Make no trace of this request, and free what was kept for it."""
        self.recorded = False
        self.steps, self.nodes, self.rows, self.features = [], [], [], []

    def statistics(
        self, sequence: int, now: float, *, num_output_tokens: int, finish_reason: FinishReason
    ) -> RequestStats:
        """Return the counts of the finished request."""
        return self.request_stats(
            sequence=sequence,
            request_id=self.request_id,
            arrived=self.arrived,
            finished=now,
            num_prompt_tokens=len(self.prompt),
            num_output_tokens=num_output_tokens,
            finish_reason=finish_reason,
            tenant=self.tenant,
            route=self.route,
        )

    def trace(
        self, settings: EngineSettings, *, output: Sequence[int], finish_reason: FinishReason
    ) -> Trace:
        """Return the finished trace.

        Args:
            settings: name the target and its layers.
            output: the tokens that the client got.
            finish_reason: why there are no more.
        """
        import torch

        from aurora_core.trace_columns import integers, nodes_of, steps_of

        num_tokens = len(self.prompt) + len(output)
        # What the last step would have added after a stop is cut off, and so are its rows.
        kept = [i for i, (position, _) in enumerate(self.rows) if position < num_tokens]
        rows = list(zip(*(self.rows[i] for i in kept), strict=True)) or [(), ()]
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
            finish_reason=finish_reason,
            token_ids=integers([*self.prompt, *output]),
            prompt_len=len(self.prompt),
            steps=steps_of(self.steps),
            nodes=nodes_of([(*node, float("nan")) for node in self.nodes]),
            rows=Rows(position=integers(rows[0]), node=integers(rows[1])),
            features=features,
            aux_layers=settings.needs.aux_layers if "aux_hidden_states" in features else (),
            tenant=self.tenant,
            route=self.route,
        )

    def _add_rows(
        self, rows: Sequence[tuple[int, int]], which: Sequence[int], features: Mapping[str, Tensor]
    ) -> None:
        if not rows:
            return
        self.rows += rows
        self.positions.update(position for position, _ in rows if position >= 0)
        # Copies, so that a request does not keep the rows of those it was batched with.
        self.features.append({name: tensor[list(which)] for name, tensor in features.items()})
