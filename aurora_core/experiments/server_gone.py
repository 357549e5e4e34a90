"""A server that is gone, or that answers nothing any more: what came from it is no result."""

from __future__ import annotations

from collections.abc import Sequence

from aurora_core.errors import BackendError

PATIENCE = 10
"""Failures in a row after which a server counts as gone."""


class ServerGone(BackendError):
    """A server that had come up did not answer until everything was asked."""


def must_answer(errors: Sequence[str], *, patience: int = PATIENCE) -> None:
    """Give a server up whose latest requests all failed, whether or not its process lives.

    Args:
        errors: of all requests, in the order in which they ended; empty for one that was answered.
        patience: failures in a row that are too many.

    Raises:
        ServerGone: there are so many at the end.
    """
    latest = errors[-patience:]
    if latest and len(latest) == patience and all(latest):
        raise ServerGone(
            f"the last {patience} requests failed, the last one with {latest[-1]}; the log of the "
            "run lies beside its directory"
        )
