"""Recording one request: features for its drafter, and the trace that the learner reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aurora_backend_torch.draft_tree import ROOT, DraftTree
from aurora_backend_torch.generation import GenerationRequest
from aurora_core.records import Needs, Rows, TargetSpec, Trace
from aurora_core.trace_columns import NodeNote, StepNote, integers, nodes_of, steps_of


class FeatureWindow:
    """Features of the newest committed rows, for the drafter that reads them next."""

    def __init__(self) -> None:
        self._chunks: list[tuple[int, int, Mapping[str, Tensor]]] = []
        """(first position, rows, features)"""

    def append(self, start: int, num_rows: int, features: Mapping[str, Tensor]) -> None:
        """Add rows that begin at position `start`, right after those already here.

        Args:
            start: position of the first row.
            num_rows: rows; not told by features where a drafter needs none.
            features: by name, each [num_rows, ...].
        """
        self._chunks.append((start, num_rows, features))

    def since(self, position: int) -> tuple[int, dict[str, Tensor]]:
        """Return the first position available from `position` on, and the features from there."""
        first = max(position, self._chunks[0][0])
        parts = [
            {name: tensor[max(first - start, 0) :] for name, tensor in features.items()}
            for start, num_rows, features in self._chunks
            if start + num_rows > first
        ]
        if not parts:
            return first, {name: tensor[:0] for name, tensor in self._chunks[-1][2].items()}
        return first, {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def forget_before(self, position: int) -> None:
        """Forget chunks that lie wholly before a position, except the newest."""
        while len(self._chunks) > 1 and self._chunks[0][0] + self._chunks[0][1] <= position:
            del self._chunks[0]

    def keep(self, num_rows: int) -> None:
        """Forget chunks that lie wholly before the newest `num_rows` rows."""
        rows = 0
        for index in range(len(self._chunks) - 1, -1, -1):
            rows += self._chunks[index][1]
            if rows >= num_rows:
                del self._chunks[:index]
                return


@dataclass(slots=True)
class TraceRecorder:
    """Collects the steps and rows of one request. Rows are kept in bfloat16."""

    num_nodes: int = 0
    steps: list[StepNote] = field(default_factory=list)
    nodes: list[NodeNote] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    row_nodes: list[int] = field(default_factory=list)
    features: list[Mapping[str, Tensor]] = field(default_factory=list)

    def add_rows(
        self, positions: Sequence[int], nodes: Sequence[int], features: Mapping[str, Tensor]
    ) -> None:
        """Add captured rows; exactly one of a row's position and node is not -1."""
        self.positions += positions
        self.row_nodes += nodes
        self.features.append(
            {
                name: tensor.to("cpu", torch.float32 if name == "target_logsumexp" else _STORED)
                for name, tensor in features.items()
            }
        )

    def add_step(
        self,
        *,
        root: int,
        version: int,
        bonus_token: int,
        accepted: Sequence[int],
        draft_ms: float,
        verify_ms: float,
        tree: DraftTree,
        log_probs: Sequence[float],
    ) -> int:
        """Add a verification step; return the index of its first node.

        Args:
            root: position of the last committed token before the step.
            version: draft version in force.
            bonus_token: the target's own token after the last accepted one.
            accepted: nodes of the tree that were accepted.
            draft_ms: time spent drafting.
            verify_ms: time of the target's pass.
            tree: the draft tokens.
            log_probs: one for each of them.
        """
        first = len(self.nodes)
        step = len(self.steps)
        self.steps.append((root, version, bonus_token, len(accepted), draft_ms, verify_ms))
        columns = zip(tree.token_ids, tree.parents, tree.depth, log_probs, strict=True)
        for node, (token, parent, depth, log_prob) in enumerate(columns):
            above = ROOT if parent == ROOT else first + parent
            self.nodes.append((step, token, above, depth, node in accepted, log_prob))
        return first

    def trace(
        self,
        request: GenerationRequest,
        *,
        token_ids: Sequence[int],
        finish_reason: str,
        target: TargetSpec,
        needs: Needs,
    ) -> Trace:
        """Return the finished trace."""
        names = self.features[0].keys() if self.features else ()
        return Trace(
            trace_id=request.request_id,
            request_key=request.request_key,
            created=request.arrived,
            target_fingerprint=target.fingerprint,
            tokenizer_fingerprint=target.tokenizer_fingerprint,
            sampling=request.sampling,
            finish_reason=finish_reason,  # type: ignore[arg-type] # one of three literals
            token_ids=integers(token_ids),
            prompt_len=len(request.prompt_token_ids),
            steps=steps_of(self.steps),
            nodes=nodes_of(self.nodes),
            rows=Rows(position=integers(self.positions), node=integers(self.row_nodes)),
            features={name: torch.cat([part[name] for part in self.features]) for name in names},
            aux_layers=needs.aux_layers,
            tenant=request.tenant,
            route=request.route,
        )


_STORED = torch.bfloat16
