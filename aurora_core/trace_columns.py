"""Steps and nodes of a trace from what an engine notes as it goes. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aurora_core.records import Nodes, Steps

StepNote = tuple[int, int, int, int, float, float]
"""(root, version, bonus token, accepted, draft ms, verify ms), as the fields of `Steps`."""

NodeNote = tuple[int, int, int, int, bool, float]
"""(step, token, parent, depth, accepted, log-probability), as the fields of `Nodes`."""


def steps_of(notes: Sequence[StepNote]) -> Steps:
    """Return steps in the order of the notes."""
    root, version, bonus, accepted, draft_ms, verify_ms = zip(*notes, strict=True) if notes else _NO
    return Steps(
        root=integers(root),
        version=integers(version),
        bonus_token=integers(bonus),
        num_accepted=integers(accepted),
        draft_ms=torch.tensor(draft_ms, dtype=torch.float32),
        verify_ms=torch.tensor(verify_ms, dtype=torch.float32),
    )


def nodes_of(notes: Sequence[NodeNote]) -> Nodes:
    """Return nodes in the order of the notes."""
    step, token, parent, depth, accepted, log_prob = zip(*notes, strict=True) if notes else _NO
    return Nodes(
        step=integers(step),
        token=integers(token),
        parent=integers(parent),
        depth=integers(depth),
        accepted=torch.tensor(accepted, dtype=torch.bool),
        log_prob=torch.tensor(log_prob, dtype=torch.float32),
    )


def integers(values: Sequence[int]) -> Tensor:
    """Return int64 [len(values)]."""
    return torch.tensor(values, dtype=torch.int64)


_NO: tuple[tuple[()], ...] = ((),) * 6
