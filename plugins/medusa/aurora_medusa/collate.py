"""Traces as one batch of flat rows.

Shape legend:
    B  traces    T  tokens of the longest trace    C  rows, over all traces
    A  anchors: rows from which a draft can start  H  hidden size

Heads read one row and nothing before it, so prompts are left out but for their last row. Nothing is
inferred from lengths: a row takes part only where the trace's row map says that it was captured.

Rows of rejected draft tokens are left out too. Medusa's heads are not conditioned on the tokens
between, so a branch that the target refused is no input of theirs. All that it could teach is that
the token proposed at some distance was wrong and what the right distribution was; the row of the
committed position before it teaches exactly that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_core.errors import TraceError
from aurora_core.records import TargetSpec, Trace
from aurora_core.trace_features import check_features, check_finite


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
    last_hidden_state: Tensor
    """[C, H], as captured."""
    target_logsumexp: Tensor
    """float32 [C]."""
    anchor_row: Tensor
    """int64 [A]. Index into the rows, increasing."""
    teacher_row: Tensor
    """int64 [B, T]. Row whose distribution is that of the token after this position; -1 where
    there is none, which includes the prompt."""
    temperature: Tensor
    """float32 [B]. 0 where drafts are verified greedily."""
    top_p: Tensor
    """float32 [B]."""
    top_k: Tensor
    """int64 [B]. 0 keeps the whole vocabulary."""

    def to_dict(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, tensors: Mapping[str, Tensor]) -> Batch:
        """Take back what `to_dict` gave, moved to a device perhaps."""
        return cls(**{name: tensors[name] for name in cls.__slots__})


def collate(traces: Sequence[Trace], target: TargetSpec, *, max_trace_tokens: int) -> Batch:
    """Select the usable rows of each trace and stack them.

    An anchor is a row whose draft would have been used: the first predicts the second token of the
    response, because the first comes from the prompt's own pass; the last predicts the last token.

    Raises:
        TraceError: a trace lacks features, was made by another target, or holds values that are
            not finite.
    """
    chosen = [_select(trace, target, max_trace_tokens) for trace in traces]
    longest = max((len(trace.token_ids) for trace in traces), default=0)
    token_ids = torch.zeros(len(traces), longest, dtype=torch.int64)
    teacher_row = torch.full((len(traces), longest), -1, dtype=torch.int64)
    row_trace, anchor_row, num_rows = [], [], 0
    for index, (trace, rows) in enumerate(zip(traces, chosen, strict=True)):
        num_tokens, row = len(trace.token_ids), torch.arange(len(rows.position)) + num_rows
        token_ids[index, :num_tokens] = trace.token_ids
        teaches = rows.position >= trace.prompt_len
        teacher_row[index, rows.position[teaches]] = row[teaches]
        row_trace.append(torch.full_like(rows.position, index))
        anchor_row.append(row[rows.position < num_tokens - 2])
        num_rows += len(row)
    empty = torch.zeros(0, dtype=torch.int64)
    greedily = [trace.sampling.rule == "greedy_always" for trace in traces]
    return Batch(
        token_ids=token_ids,
        num_tokens=torch.tensor([len(trace.token_ids) for trace in traces], dtype=torch.int64),
        row_trace=torch.cat([empty, *row_trace]),
        row_position=torch.cat([empty, *(rows.position for rows in chosen)]),
        last_hidden_state=torch.cat([rows.last_hidden for rows in chosen])
        if chosen
        else torch.zeros(0, target.hidden_size),
        target_logsumexp=torch.cat([torch.zeros(0), *(rows.logsumexp for rows in chosen)]),
        anchor_row=torch.cat([empty, *anchor_row]),
        teacher_row=teacher_row,
        temperature=torch.tensor(
            [
                0.0 if greedy else trace.sampling.temperature
                for greedy, trace in zip(greedily, traces, strict=True)
            ]
        ),
        top_p=torch.tensor([trace.sampling.top_p for trace in traces]),
        top_k=torch.tensor([trace.sampling.top_k for trace in traces], dtype=torch.int64),
    )


@dataclass(frozen=True, slots=True)
class _ChosenRows:
    """Usable rows of one trace, by position."""

    position: Tensor
    last_hidden: Tensor
    logsumexp: Tensor


def _select(trace: Trace, target: TargetSpec, max_trace_tokens: int) -> _ChosenRows:
    last_hidden, logsumexp = _features(trace, target)
    num_tokens = len(trace.token_ids)
    position = trace.rows.position
    # The last token's row has nothing to teach; a prompt's row before the last starts no draft.
    first = max(trace.prompt_len - 1, num_tokens - max_trace_tokens, 0)
    usable = (position >= first) & (position < num_tokens - 1)
    index = usable.nonzero().flatten()
    index = index[position[index].argsort()]
    position = position[index]
    if bool((position[1:] == position[:-1]).any()):
        raise TraceError(f"trace {trace.trace_id!r} has two rows at one position; drop the trace")
    rows = _ChosenRows(position, last_hidden[index], logsumexp[index].float())
    check_finite(trace, {"last_hidden_state": rows.last_hidden, "target_logsumexp": rows.logsumexp})
    return rows


def _features(trace: Trace, target: TargetSpec) -> tuple[Tensor, Tensor]:
    widths = {"last_hidden_state": (target.hidden_size,), "target_logsumexp": ()}
    check_features(trace, target, widths, speculator="medusa")
    return trace.features["last_hidden_state"], trace.features["target_logsumexp"]
