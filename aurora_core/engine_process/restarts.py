"""What a backend carries over a restart of its engine: numbers of requests, and what was live."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from aurora_core.errors import CheckpointError
from aurora_core.records import NO_DRAFTER, DraftVersion, RequestStats
from aurora_core.versions import VersionStore


class RequestNumbers:
    """Sequence numbers that go on rising, though every new engine counts from 1 again."""

    def __init__(self) -> None:
        self._offset = self._newest = 0

    def engine_ended(self) -> None:
        """The next engine begins anew; what was lost with this one has no number."""
        self._offset = self._newest

    def leave_out(self, finished: Sequence[RequestStats]) -> None:
        """Begin behind requests that an engine answered before it was attached to."""
        self._offset = -max((one.sequence for one in finished), default=0)

    async def finished(
        self, after: int, ask: Callable[[int], Awaitable[Sequence[RequestStats]]]
    ) -> list[RequestStats]:
        """Return the requests with a number above `after`, oldest first.

        Args:
            after: in these numbers.
            ask: gives the engine's requests above a number of its own, at least 0.
        """
        offset = self._offset
        requests = await ask(max(after - offset, 0))
        if self._offset != offset:  # it was started again meanwhile
            return []
        numbered = [replace(one, sequence=one.sequence + offset) for one in requests]
        wanted = [one for one in numbered if one.sequence > after]
        if wanted:
            self._newest = max(self._newest, wanted[-1].sequence)
        return wanted


def version_in_force(
    known: DraftVersion | None, number: int, versions_dir: str
) -> DraftVersion | None:
    """Return the version that an engine says it serves: a swap may succeed unheard.

    Args:
        known: the version that was heard of last.
        number: what the engine says, `NO_DRAFTER` without one.
        versions_dir: where versions are published. What is not there is nobody's, and None is
            returned: a new engine is not to start with it.
    """
    if number == (NO_DRAFTER if known is None else known.version):
        return known
    if number != NO_DRAFTER:
        with contextlib.suppress(CheckpointError):
            return VersionStore(Path(versions_dir)).read(number)
    return None
