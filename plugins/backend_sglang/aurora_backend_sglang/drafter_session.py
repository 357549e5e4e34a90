"""One draft-only weight update of SGLang, with the target's weights watched over it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from aurora_backend_sglang.control_client import ControlClient, LoadReceipt
from aurora_backend_sglang.target_watch import TargetWatch
from aurora_core.errors import BackendError
from aurora_core.records import DraftVersion


class DrafterSession:
    """Changes drafters of one running server, and notices if its target changes by it."""

    def __init__(self, client: ControlClient, *, pause: str, verify_target: str | None) -> None:
        """
        Args:
            client: of the server.
            pause: `in_place` or `retract`, see the options.
            verify_target: see the options.
        """
        self._client, self._pause = client, pause
        self._target = TargetWatch(client, how=verify_target)

    async def begin(self) -> None:
        """Have remembered what the target is as it was started."""
        await self._target.begin()

    async def load(
        self, version: DraftVersion, *, is_first: bool = False
    ) -> tuple[LoadReceipt, float]:
        """Make a version live; return what the engine says, and the ms for which it stood still.

        Returns once the target was looked at, by which time the version has served for a while.

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
        return receipt, stall_ms[0] + await self._target.look(version)

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
