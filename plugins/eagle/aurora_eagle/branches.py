"""Rejected branches of a trace: what was drafted beside the committed tokens, and who can teach it.

A draft node that was rejected had been computed by the drafter and read by the target, on a prefix
that was never committed. Where the engine kept the target's row of it, it says what would have come
next on that branch: the very states the drafter visits when it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_core.records import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """Rejected nodes of one trace, parents before children. Leading dimension n."""

    anchor_position: Tensor
    """int64 [n]. Position of the row that the node's draft started from, one before its root."""
    parent: Tensor
    """int64 [n]. Index of the parent among these; -1 where it is a committed token."""
    token: Tensor
    """int64 [n]. Target vocabulary id."""
    depth: Tensor
    """int64 [n]. 1 for an alternative to the token after the root."""
    log_prob: Tensor
    """float32 [n]. Of the drafter that proposed it, NaN if unknown."""
    version: Tensor
    """int64 [n]. Of the drafter that proposed it."""
    row: Tensor
    """int64 [n]. The target's row that has read the node, among the rows of the trace; or -1."""

    @classmethod
    def none(cls) -> Branches:
        """Return no branches."""
        empty = torch.zeros(0, dtype=torch.int64)
        return cls(
            anchor_position=empty, parent=empty, token=empty, depth=empty,
            log_prob=torch.zeros(0), version=empty, row=empty,
        )  # fmt: skip


def select_branches(
    trace: Trace, anchor_positions: Tensor, *, max_depth: int, min_version: int | None = None
) -> Branches:
    """Return the rejected nodes that training can run through and that a target row teaches.

    Left out are nodes below `max_depth`, nodes of steps whose first row was not captured, nodes
    that repeat the committed token (the committed path teaches the same) or lie beyond the end of
    the response, and nodes below which no row was kept, so that a trace without rows of rejected
    nodes costs nothing.

    Args:
        trace: a valid trace.
        anchor_positions: int64. Positions from which a draft can start.
        max_depth: deepest node that is still fed to the drafter.
        min_version: oldest draft version whose branches are taken; None takes all.
    """
    if not len(trace.nodes.token) or max_depth < 1:
        return Branches.none()
    anchors = set(anchor_positions.tolist())
    row_of = torch.full_like(trace.nodes.token, -1)
    at = (trace.rows.node >= 0).nonzero().flatten()
    row_of[trace.rows.node[at]] = at
    rows, versions = row_of.tolist(), trace.steps.version.tolist()
    depths, parents = trace.nodes.depth.tolist(), trace.nodes.parent.tolist()
    roots, steps = trace.steps.root.tolist(), trace.nodes.step.tolist()
    off_path = {node: parent for node, parent, _ in _rejected(trace)}
    usable: set[int] = set()
    for node, parent in off_path.items():
        version = versions[steps[node]]
        if depths[node] > max_depth or (min_version is not None and version < min_version):
            continue
        if parent in usable if parent >= 0 else roots[steps[node]] - 1 in anchors:
            usable.add(node)
    teaching: set[int] = set()
    for node in sorted(usable, reverse=True):
        if rows[node] >= 0 or node in teaching:
            teaching.add(node)
            teaching.add(parents[node])
    chosen = sorted(usable & teaching)
    index = {node: place for place, node in enumerate(chosen)}
    node = torch.tensor(chosen, dtype=torch.int64)
    step = trace.nodes.step[node]
    return Branches(
        anchor_position=trace.steps.root[step] - 1,
        parent=torch.tensor([index.get(off_path[one], -1) for one in chosen], dtype=torch.int64),
        token=trace.nodes.token[node],
        depth=trace.nodes.depth[node],
        log_prob=trace.nodes.log_prob[node],
        version=trace.steps.version[step],
        row=row_of[node],
    )


def refused_tokens(trace: Trace) -> tuple[Tensor, Tensor]:
    """Return (positions, tokens), int64 [J] each: drafts rejected right below a committed token.

    The position is that of the committed token below which the draft hung: the target, having read
    it, chose another one.
    """
    found = [(place - 1, node) for node, parent, place in _rejected(trace) if parent < 0]
    position, node = torch.tensor(found, dtype=torch.int64).reshape(-1, 2).unbind(1)
    return position, trace.nodes.token[node]


def _rejected(trace: Trace) -> Iterator[tuple[int, int, int]]:
    """Yield (node, rejected parent or -1, position) of nodes off the committed path, in order."""
    nodes = trace.nodes
    token_ids, roots = trace.token_ids.tolist(), trace.steps.root.tolist()
    off_path: set[int] = set()
    columns = (nodes.step, nodes.token, nodes.parent, nodes.depth, nodes.accepted)
    for node, (step, token, parent, depth, accepted) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if accepted:
            continue
        place = roots[step] + depth
        if parent in off_path:
            off_path.add(node)
            yield node, parent, place
            continue
        below_committed = parent < 0 or bool(nodes.accepted[parent])
        # A draft can be right and yet not accepted, where the response ended first.
        if below_committed and place < len(token_ids) and token_ids[place] != token:
            off_path.add(node)
            yield node, -1, place
