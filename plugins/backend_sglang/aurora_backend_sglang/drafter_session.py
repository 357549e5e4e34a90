"""One draft-only weight update of SGLang, with the target's weights watched over it."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio

from aurora_backend_sglang.control_client import ControlClient, LoadReceipt
from aurora_core.errors import BackendError
from aurora_core.records import DraftVersion

logger = logging.getLogger(__name__)


class DrafterSession:
    """Changes drafters of one running server, and notices if its target changes by it."""

    def __init__(self, client: ControlClient, *, pause: str) -> None:
        """
        Args:
            client: of the server.
            pause: `in_place` or `retract`, see the options.
        """
        self._client, self._pause = client, pause
        self._target: Mapping[str, str] = {}

    async def begin(self) -> None:
        """Remember the checksums of the target as it was started."""
        self._target = _of_target(await self._client.checksums())

    async def load(
        self, version: DraftVersion, *, is_first: bool = False
    ) -> tuple[LoadReceipt, float]:
        """Make a version live; return what the engine says, and the ms for which it stood still.

        The scheduler decodes nothing either while it computes the checksums of the target.

        Args:
            version: to load.
            is_first: no drafter has read anything before: what runs is read again, and the prefix
                cache is emptied, whatever the pause is otherwise.

        Raises:
            BackendError: refused, or the engine reports other weights or a changed target.
        """
        stall_ms: list[float] = []
        mode = "retract" if is_first else self._pause
        # Whatever happens in between, the server must not be left standing.
        with anyio.CancelScope(shield=True):
            async with self._paused(mode, stall_ms), self._updating():
                receipt = await self._client.load_version(
                    version.version, version.checksum, flush_cache=mode == "retract"
                )
        if receipt.checksum != version.checksum:
            raise BackendError(
                f"SGLang reports checksum {receipt.checksum[:12]!r} for version "
                f"{version.version}, which was published with {version.checksum[:12]!r}"
            )
        asked = time.perf_counter()
        await self._compare_target(version)
        return receipt, stall_ms[0] + 1000 * (time.perf_counter() - asked)

    async def _compare_target(self, version: DraftVersion) -> None:
        found = _of_target(await self._client.checksums())
        if found != self._target:
            changed = sorted(
                name
                for name in found.keys() | self._target.keys()
                if found.get(name) != self._target.get(name)
            )
            raise BackendError(
                f"{len(changed)} tensors of the target, {changed[0]!r} among them, are no longer "
                f"what they were before version {version.version} was loaded; stop the run and "
                "start it again, since its answers may be wrong"
            )

    @asynccontextmanager
    async def _paused(self, mode: str, stall_ms: list[float]) -> AsyncIterator[None]:
        started = time.perf_counter()
        try:
            await self._client.pause(mode)
            yield
        finally:
            # Also when the answer to the pause was lost: to go on costs nothing if it was not on.
            await self._client.resume()
            stall_ms.append(1000 * (time.perf_counter() - started))

    @asynccontextmanager
    async def _updating(self) -> AsyncIterator[None]:
        await self._client.begin_update()
        try:
            yield
        finally:
            await self._client.end_update()


def _of_target(checksums: Mapping[str, str]) -> dict[str, str]:
    return {
        name: checksum
        for name, checksum in checksums.items()
        if not name.partition("/")[2].startswith("draft") and not name.startswith("draft")
    }
