"""Traces as one batch of flat rows.

Shape legend:
    B  traces    T  tokens of the longest trace    C  context rows, over all traces
    A  anchors: rows from which a draft can start  Y  target rows that supervise
    N  rejected draft nodes, over all traces       J  tokens refused after a committed one
    X  width of `aux_hidden_states`                H  hidden size

What is large is flat and holds no padding. Nothing is inferred from lengths: a row takes part only
where the trace's row map says that the target's features of that position were captured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_core.records import TargetSpec, Trace
from aurora_eagle.selection import ChosenRows, Wanted, select_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch; `to_dict` and `from_dict` are its form outside this plugin."""

    token_ids: Tensor
    """int64 [B, T]. Padded with 0."""
    num_tokens: Tensor
    """int64 [B]."""
    row_trace: Tensor
    """int64 [C]. Non-decreasing."""
    row_position: Tensor
    """int64 [C]. Increasing within a trace; the token after it is in the trace too."""
    aux_hidden_states: Tensor
    """[C, X], as captured."""
    anchor_row: Tensor
    """int64 [A]. Index into the context rows."""
    teacher_row: Tensor
    """int64 [B, T]. Target row whose distribution is that of the token after this position, among
    the Y; -1 where there is none, which includes the prompt."""
    teacher_trace: Tensor
    """int64 [Y]."""
    teacher_next_token: Tensor
    """int64 [Y]. The token committed after the row's position; -1 at rejected nodes."""
    last_hidden_state: Tensor
    """[Y, H], as captured; [Y, 0] where nobody asked for it."""
    target_logsumexp: Tensor
    """float32 [Y]; 0 where nobody asked for it."""
    temperature: Tensor
    """float32 [B]. 0 where drafts are verified greedily."""
    top_p: Tensor
    """float32 [B]."""
    top_k: Tensor
    """int64 [B]. 0 keeps the whole vocabulary."""
    branch_anchor: Tensor
    """int64 [N]. The anchor that the draft of each rejected node started from."""
    branch_parent: Tensor
    """int64 [N]. Index of its parent among the N, before its own; -1 for a committed token."""
    branch_token: Tensor
    """int64 [N]. Target vocabulary id."""
    branch_depth: Tensor
    """int64 [N]. 1 for an alternative to the second token after the anchor."""
    branch_teacher: Tensor
    """int64 [N]. The target row that has read the node, among the Y; or -1."""
    branch_log_prob: Tensor
    """float32 [N]. Under the drafter that proposed it; NaN if unknown."""
    branch_version: Tensor
    """int64 [N]. Draft version that proposed it."""
    refused_row: Tensor
    """int64 [J]. The target row that knew better, among the Y."""
    refused_token: Tensor
    """int64 [J]. Target vocabulary id of the draft that was rejected there."""

    def to_dict(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, tensors: Mapping[str, Tensor]) -> Batch:
        """Take back what `to_dict` gave, moved to a device perhaps."""
        return cls(**{name: tensors[name] for name in cls.__slots__})


def collate(
    traces: Sequence[Trace],
    target: TargetSpec,
    *,
    aux_layers: tuple[int, ...],
    max_trace_tokens: int,
    wanted: Wanted | None = None,
) -> Batch:
    """Select the usable rows of each trace and stack them.

    An anchor is a row whose draft would have been used: the first predicts the second token of the
    response, because the first comes from the prompt's own pass; the last predicts the last token.

    Raises:
        TraceError: a trace lacks features, was made by another target or with other layers, or
            holds values that are not finite.
    """
    wanted = wanted or Wanted()
    oldest = _oldest_version(traces, wanted.max_branch_staleness)
    rows = [
        select_rows(trace, target, aux_layers, max_trace_tokens, wanted, oldest) for trace in traces
    ]
    longest = max((len(trace.token_ids) for trace in traces), default=0)
    token_ids = torch.zeros(len(traces), longest, dtype=torch.int64)
    teacher_row = torch.full((len(traces), longest), -1, dtype=torch.int64)
    before = _Counts()
    columns: dict[str, list[Tensor]] = {name: [] for name in _COLUMNS}
    for index, (trace, chosen) in enumerate(zip(traces, rows, strict=True)):
        token_ids[index, : len(trace.token_ids)] = trace.token_ids
        taught = chosen.position[chosen.teachers]
        teacher_row[index, taught] = torch.arange(len(taught)) + before.teachers
        mine = _columns(trace, chosen, index, before)
        mine["refused_row"] = teacher_row[index, chosen.refused_position]
        for name in _COLUMNS:
            columns[name].append(mine[name])
        before.context += len(chosen.position)
        before.anchors += len(mine["anchor_row"])
        before.teachers += len(mine["teacher_trace"])
        before.branches += len(mine["branch_token"])
    greedy = [trace.sampling.rule == "greedy_always" for trace in traces]
    return Batch(
        token_ids=token_ids,
        num_tokens=torch.tensor([len(trace.token_ids) for trace in traces], dtype=torch.int64),
        row_position=_concatenate([chosen.position for chosen in rows]),
        aux_hidden_states=_concatenate(
            [chosen.aux for chosen in rows], width=len(aux_layers) * target.hidden_size
        ),
        teacher_row=teacher_row,
        last_hidden_state=_concatenate(
            [chosen.last_hidden for chosen in rows], width=target.hidden_size
        ),
        target_logsumexp=_concatenate([chosen.logsumexp for chosen in rows]).float(),
        temperature=torch.tensor(
            [
                0.0 if greedily else trace.sampling.temperature
                for greedily, trace in zip(greedy, traces, strict=True)
            ]
        ),
        top_p=torch.tensor([trace.sampling.top_p for trace in traces]),
        top_k=torch.tensor([trace.sampling.top_k for trace in traces], dtype=torch.int64),
        **{name: _concatenate(parts) for name, parts in columns.items()},
    )


_COLUMNS = (
    "anchor_row", "row_trace", "teacher_next_token", "teacher_trace", "branch_anchor",
    "branch_parent", "branch_teacher", "branch_token", "branch_depth", "branch_log_prob",
    "branch_version", "refused_row", "refused_token",
)  # fmt: skip


@dataclass(slots=True)
class _Counts:
    """Rows of the traces before one, of each kind."""

    context: int = 0
    anchors: int = 0
    teachers: int = 0
    branches: int = 0


def _columns(trace: Trace, chosen: ChosenRows, index: int, before: _Counts) -> dict[str, Tensor]:
    """Return what one trace adds to the flat tensors, by name, all but `refused_row`.

    Its target rows are those of committed positions, then those of rejected nodes.
    """
    branches, taught = chosen.branches, chosen.position[chosen.teachers]
    anchors = chosen.anchors.nonzero().flatten()
    has_row = branches.row >= 0
    num_rows = int(has_row.sum())
    return {
        "row_trace": torch.full_like(chosen.position, index),
        "anchor_row": anchors + before.context,
        "teacher_trace": torch.full((len(taught) + num_rows,), index),
        "teacher_next_token": torch.cat([trace.token_ids[taught + 1], torch.full((num_rows,), -1)]),
        "branch_anchor": before.anchors
        + torch.searchsorted(chosen.position[anchors], branches.anchor_position),
        "branch_parent": torch.where(
            branches.parent < 0, branches.parent, branches.parent + before.branches
        ),
        "branch_token": branches.token,
        "branch_depth": branches.depth,
        "branch_teacher": torch.where(
            has_row, has_row.cumsum(0) - 1 + len(taught) + before.teachers, -1
        ),
        "branch_log_prob": branches.log_prob,
        "branch_version": branches.version,
        "refused_token": chosen.refused_token,
    }


def _oldest_version(traces: Sequence[Trace], max_staleness: int | None) -> int | None:
    versions = [int(trace.steps.version.max()) for trace in traces if len(trace.steps.version)]
    return None if max_staleness is None or not versions else max(versions) - max_staleness


def _concatenate(parts: Sequence[Tensor], *, width: int | None = None) -> Tensor:
    """Concatenate, or make the empty tensor of the right shape when there is nothing."""
    if parts:
        return torch.cat(list(parts))
    return torch.zeros(0, dtype=torch.int64) if width is None else torch.zeros(0, width)
