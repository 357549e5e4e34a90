"""Work shared between the processes of a multi-device learner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch


def is_first_process() -> bool:
    """Whether this process was started by the controller, not by a multi-device launcher."""
    ranks = ("RANK", "NODE_RANK", "LOCAL_RANK")
    return all(int(os.environ.get(name) or 0) == 0 for name in ranks)


def deliver(messages: Sequence[Any] | None) -> Any:
    """Hand the r-th message of rank 0 to rank r; every rank must call it.

    Only rank 0 reads the sink: ranks that read for themselves would take unequal numbers of
    batches, and then wait for each other for ever.

    Args:
        messages: one for each rank; None on the others.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        assert messages is not None
        return messages[0]
    received: list[Any] = [None]
    torch.distributed.scatter_object_list(
        received, None if messages is None else list(messages), src=0
    )
    return received[0]
