"""Traces as one batch of flat rows.

Shape legend:
    B  traces    T  tokens of the longest trace    C  context rows, over all traces
    A  anchors: rows from which a draft can start  Y  target rows that supervise
    X  width of `aux_hidden_states`                H  hidden size

What is large is flat and holds no padding. Nothing is inferred from lengths: a row takes part only
where the trace's row map says that the target's features of that position were captured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_core.errors import TraceError
from aurora_core.records import TargetSpec, Trace


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
    """int64 [Y]. The token committed after the row's position."""
    last_hidden_state: Tensor
    """[Y, H], as captured."""
    target_logsumexp: Tensor
    """float32 [Y]."""
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


def collate(
    traces: Sequence[Trace],
    target: TargetSpec,
    *,
    aux_layers: tuple[int, ...],
    max_trace_tokens: int,
) -> Batch:
    """Select the usable rows of each trace and stack them.

    An anchor is a row whose draft would have been used: the first predicts the second token of the
    response, because the first comes from the prompt's own pass; the last predicts the last token.

    Raises:
        TraceError: a trace lacks features, was made by another target or with other layers, or
            holds values that are not finite.
    """
    rows = [_select(trace, target, aux_layers, max_trace_tokens) for trace in traces]
    longest = max((len(trace.token_ids) for trace in traces), default=0)
    token_ids = torch.zeros(len(traces), longest, dtype=torch.int64)
    teacher_row = torch.full((len(traces), longest), -1, dtype=torch.int64)
    num_context = num_teachers = 0
    anchor_row, row_trace, teacher_trace, teacher_next = [], [], [], []
    for index, (trace, chosen) in enumerate(zip(traces, rows, strict=True)):
        token_ids[index, : len(trace.token_ids)] = trace.token_ids
        anchor_row.append(chosen.anchors.nonzero().flatten() + num_context)
        row_trace.append(torch.full_like(chosen.position, index))
        taught = chosen.position[chosen.teachers]
        teacher_row[index, taught] = torch.arange(len(taught)) + num_teachers
        teacher_trace.append(torch.full_like(taught, index))
        teacher_next.append(trace.token_ids[taught + 1])
        num_context += len(chosen.position)
        num_teachers += len(taught)
    greedy = [trace.sampling.rule == "greedy_always" for trace in traces]
    return Batch(
        token_ids=token_ids,
        num_tokens=torch.tensor([len(trace.token_ids) for trace in traces], dtype=torch.int64),
        row_trace=_concatenate(row_trace),
        row_position=_concatenate([chosen.position for chosen in rows]),
        aux_hidden_states=_concatenate(
            [chosen.aux for chosen in rows], width=len(aux_layers) * target.hidden_size
        ),
        anchor_row=_concatenate(anchor_row),
        teacher_row=teacher_row,
        teacher_trace=_concatenate(teacher_trace),
        teacher_next_token=_concatenate(teacher_next),
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
    )


@dataclass(frozen=True, slots=True)
class _ChosenRows:
    """Usable rows of one trace: `position` [c], two masks over them [c], and their features."""

    position: Tensor
    anchors: Tensor
    teachers: Tensor
    aux: Tensor
    last_hidden: Tensor
    logsumexp: Tensor


def _select(
    trace: Trace, target: TargetSpec, aux_layers: tuple[int, ...], max_trace_tokens: int
) -> _ChosenRows:
    aux, last_hidden, logsumexp = _features(trace, target, aux_layers)
    num_tokens = len(trace.token_ids)
    position = trace.rows.position
    # A row needs the token after its own: the last token's row has nothing to read or to teach.
    first = num_tokens - max_trace_tokens
    usable = (position >= max(first, 0)) & (position < num_tokens - 1)
    index = usable.nonzero().flatten()
    index = index[position[index].argsort()]
    position = position[index]
    if bool((position[1:] == position[:-1]).any()):
        raise TraceError(f"trace {trace.trace_id!r} has two rows at one position; drop the trace")
    teachers = position >= trace.prompt_len
    chosen = _ChosenRows(
        position=position,
        anchors=(position >= trace.prompt_len - 1) & (position < num_tokens - 2),
        teachers=teachers,
        aux=aux[index],
        last_hidden=last_hidden[index[teachers]],
        logsumexp=logsumexp[index[teachers]],
    )
    for name, tensor in (
        ("aux_hidden_states", chosen.aux),
        ("last_hidden_state", chosen.last_hidden),
        ("target_logsumexp", chosen.logsumexp),
    ):
        if not bool(torch.isfinite(tensor).all()):
            raise TraceError(
                f"trace {trace.trace_id!r} has values in {name!r} that are not finite; "
                "drop the trace"
            )
    return chosen


def _features(
    trace: Trace, target: TargetSpec, aux_layers: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    if trace.target_fingerprint != target.fingerprint:
        raise TraceError(
            f"trace {trace.trace_id!r} was made by another target than {target.name!r}; "
            "drop the trace"
        )
    widths = {
        "aux_hidden_states": (len(aux_layers) * target.hidden_size,),
        "last_hidden_state": (target.hidden_size,),
        "target_logsumexp": (),
    }
    for name, width in widths.items():
        feature = trace.features.get(name)
        if feature is None:
            raise TraceError(
                f"trace {trace.trace_id!r} lacks the feature {name!r} that 'eagle3' learns from; "
                "let the backend record it"
            )
        if tuple(feature.shape) != (len(trace.rows.position), *width):
            raise TraceError(
                f"trace {trace.trace_id!r} has {name!r} of shape {list(feature.shape)}, expected "
                f"{[len(trace.rows.position), *width]}; drop the trace"
            )
    if trace.aux_layers != aux_layers:
        raise TraceError(
            f"trace {trace.trace_id!r} has hidden states of layers {list(trace.aux_layers)}, "
            f"expected {list(aux_layers)}; let the backend record those"
        )
    return (
        trace.features["aux_hidden_states"],
        trace.features["last_hidden_state"],
        trace.features["target_logsumexp"],
    )


def _concatenate(parts: Sequence[Tensor], *, width: int | None = None) -> Tensor:
    """Concatenate, or make the empty tensor of the right shape when there is nothing."""
    if parts:
        return torch.cat(list(parts))
    return torch.zeros(0, dtype=torch.int64) if width is None else torch.zeros(0, width)
