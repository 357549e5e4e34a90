"""Which versions are in use, written down: state.json, the versions folder, MLflow's mirror.

    swapping --> remember() --> registry: aliases
                     |
                     v
                 state.json --> old versions deleted --> registry: their copies deleted
                     |
                     +-- disk full: retry() once a second

What serves is never held up by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from aurora_core.versions import RunState

if TYPE_CHECKING:
    from aurora_core.controller.run_directory import RunDirectory
    from aurora_core.model_registry import ModelRegistry
    from aurora_core.records import DraftVersion

log = logging.getLogger(__name__)


class Bookkeeping:
    """Keeps what is on disk in step with what serves; a disk that fails is tried again."""

    def __init__(
        self,
        directory: RunDirectory,
        registry: ModelRegistry | None,
        *,
        note: Callable[[str], None],
    ) -> None:
        """
        Args:
            directory: of the run, locked.
            registry: MLflow's mirror, None without tracking.
            note: told in a sentence when writing begins to fail, and when it works again.
        """
        self._directory, self._registry, self._note = directory, registry, note
        self._aliases: tuple[DraftVersion | None, DraftVersion | None] | None = None
        self._unwritten: RunState | None = None
        self._failing = False
        self._writing = anyio.Lock()

    async def remember(
        self,
        live: DraftVersion | None,
        previous: DraftVersion | None,
        challenger: DraftVersion | None,
        *,
        on_trial: DraftVersion | None = None,
        pinned: bool = False,
        switched_off: bool = False,
    ) -> None:
        """Write down which versions are in use; never raises because of the disk.

        Args:
            live: serves now, None without a drafter.
            previous: where a roll back goes.
            challenger: waits to be judged.
            on_trial: serves a share of the requests.
            pinned: a person chose what is live.
            switched_off: a verdict switched speculation off.
        """
        if self._registry is not None and (live, previous) != self._aliases:
            self._aliases = (live, previous)
            self._registry.set_live(live, previous)
        champion, earlier, waiting, trial = (
            None if draft is None else draft.version
            for draft in (live, previous, challenger, on_trial)
        )
        self._unwritten = RunState(
            champion=champion,
            previous=earlier,
            challenger=waiting,
            trial=trial,
            pinned=pinned,
            switched_off=switched_off,
        )
        await self._write()

    async def retry(self) -> None:
        """Write what could not be written before; usually there is nothing to do."""
        if not self._writing.locked():
            await self._write()

    async def _write(self) -> None:
        async with self._writing:
            state = self._unwritten
            if state is None:
                return
            try:
                pruned = await anyio.to_thread.run_sync(self._directory.remember, state)
            except OSError as error:
                self._fail(error)
                return
            if self._unwritten is state:
                self._unwritten = None
        if self._failing:
            self._failing = False
            self._note("state.json is written again")
        if self._registry is not None:
            for draft in pruned:
                self._registry.retire(draft)

    def _fail(self, error: OSError) -> None:
        if not self._failing:
            log.warning("%s cannot be written: %s", self._directory.state, error)
            self._note(
                f"state.json cannot be written: {error.strerror}; serving goes on and it is tried "
                "again, and until then a later run would begin with the drafter that it names"
            )
        self._failing = True
