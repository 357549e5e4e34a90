"""Usable rows of one trace: which start drafts, which teach, and which rejected nodes join them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_core.errors import TraceError
from aurora_core.records import TargetSpec, Trace
from aurora_core.trace_features import check_features, check_finite
from aurora_eagle.branches import Branches, refused_tokens, select_branches


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an objective uses beside the committed tokens."""

    teacher: bool = True
    """Target rows; without them only tokens teach."""
    branch_depth: int = 0
    """Deepest rejected node that is trained through; 0 takes none."""
    max_branch_staleness: int | None = None
    """Versions that a branch's drafter may lie behind the newest of the batch; None is no limit."""
    refused: bool = False
    """Tokens rejected right after committed ones."""


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Usable rows of one trace: `position` [c], two masks over them [c], and their features.

    `last_hidden` and `logsumexp` are those of the teachers, then those of rejected nodes.
    """

    position: Tensor
    anchors: Tensor
    teachers: Tensor
    aux: Tensor
    last_hidden: Tensor
    logsumexp: Tensor
    branches: Branches
    refused_position: Tensor
    refused_token: Tensor


def select_rows(
    trace: Trace,
    target: TargetSpec,
    aux_layers: tuple[int, ...],
    max_trace_tokens: int,
    wanted: Wanted,
    oldest_version: int | None,
) -> ChosenRows:
    """Choose the rows of one trace.

    Args:
        trace: a valid trace.
        target: what it must have been made by.
        aux_layers: layers it must hold hidden states of.
        max_trace_tokens: newest positions that are used.
        wanted: what the objective uses.
        oldest_version: oldest draft version whose branches are taken; None takes all.

    Raises:
        TraceError: a feature is missing, misshaped, of other layers or not finite.
    """
    _check_features(trace, target, aux_layers, wanted)
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
    anchors = (position >= trace.prompt_len - 1) & (position < num_tokens - 2)
    branches = select_branches(
        trace, position[anchors], max_depth=wanted.branch_depth, min_version=oldest_version
    )
    taught = torch.cat([index[teachers], branches.row[branches.row >= 0]])
    refused_position = refused_token = torch.zeros(0, dtype=torch.int64)
    if wanted.refused:
        refused_position, refused_token = refused_tokens(trace)
        known = torch.isin(refused_position, position[teachers])
        refused_position, refused_token = refused_position[known], refused_token[known]
    aux = trace.features["aux_hidden_states"]
    if wanted.teacher:
        last_hidden = trace.features["last_hidden_state"][taught]
        logsumexp = trace.features["target_logsumexp"][taught]
    else:
        last_hidden, logsumexp = aux.new_zeros(len(taught), 0), torch.zeros(len(taught))
    chosen = ChosenRows(
        position=position,
        anchors=anchors,
        teachers=teachers,
        aux=aux[index],
        last_hidden=last_hidden,
        logsumexp=logsumexp,
        branches=branches,
        refused_position=refused_position,
        refused_token=refused_token,
    )
    check_finite(
        trace,
        {
            "aux_hidden_states": chosen.aux,
            "last_hidden_state": chosen.last_hidden,
            "target_logsumexp": chosen.logsumexp,
        },
    )
    return chosen


def _check_features(
    trace: Trace, target: TargetSpec, aux_layers: tuple[int, ...], wanted: Wanted
) -> None:
    widths: dict[str, tuple[int, ...]] = {
        "aux_hidden_states": (len(aux_layers) * target.hidden_size,)
    }
    if wanted.teacher:
        widths |= {"last_hidden_state": (target.hidden_size,), "target_logsumexp": ()}
    check_features(trace, target, widths, speculator="eagle3")
    if trace.aux_layers != aux_layers:
        raise TraceError(
            f"trace {trace.trace_id!r} has hidden states of layers {list(trace.aux_layers)}, "
            f"expected {list(aux_layers)}; let the backend record those"
        )
