"""Which drafter a worker drafts with, told to everything in the worker that asks."""

from __future__ import annotations

from dataclasses import dataclass

from aurora_core.records import NO_DRAFTER


@dataclass(slots=True)
class LiveDrafter:
    """The version in force; changes between two steps only."""

    version: int = NO_DRAFTER
    """`NO_DRAFTER` while speculation is off: the drafter in memory is not run then."""
    checksum: str = ""

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted at all."""
        return self.version != NO_DRAFTER
