"""Control routes below `/aurora` in vLLM's server: status, finished requests, swaps.

Versions are named by number and resolved below the run's own `versions_dir`; no route takes a path.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import psutil

from aurora_backend_vllm.engine.settings import read_settings
from aurora_core.errors import BackendError
from aurora_core.records import NO_DRAFTER
from aurora_core.wire import to_dict

logger = logging.getLogger(__name__)

_STAGING_POLL_S = 0.02
_STAGING_TIMEOUT_S = 300.0


class EngineControl:
    """Talks to the workers of one server through vLLM's `EngineClient`."""

    def __init__(self, engine: Any) -> None:
        """
        Args:
            engine: vLLM's `EngineClient`.
        """
        self.settings = read_settings(engine.vllm_config.additional_config)
        self.live_version = self.settings.initial_version
        self._engine = engine
        self._one_change_at_a_time = asyncio.Lock()

    async def status(self) -> dict[str, Any]:
        """Return {"status": BackendStatus, "recorder": ..., "settings": ...}."""
        answer: dict[str, Any] = await self._call("aurora_status")
        status = answer["status"]
        self.live_version = status["live_version"]
        own = psutil.Process().memory_info().rss / 2**20
        status["memory_mib"] += own
        return {**answer, "settings": to_dict(self.settings)}

    async def finished(self, after: int) -> list[dict[str, Any]]:
        """Return `RequestStats` of requests that finished after a sequence number."""
        answer: list[dict[str, Any]] = await self._call("aurora_finished", after)
        return answer

    async def swap(self, version: int | None, checksum: str) -> dict[str, Any]:
        """Make a version live, or switch speculation off; returns a `SwapReceipt`.

        Raises:
            BackendError: refused; the previous drafter serves.
        """
        async with self._one_change_at_a_time:
            number = NO_DRAFTER if version is None else version
            if version is not None:
                await self._stage(version, checksum)
            started = time.perf_counter()
            receipt: dict[str, Any] = await self._call("aurora_swap", number)
            self.live_version = number
            await self._refresh_caches(number)
            logger.info(
                "version %d is live; the call took %.1f ms",
                number,
                1000 * (time.perf_counter() - started),
            )
            return receipt

    async def _stage(self, version: int, checksum: str) -> None:
        await self._call("aurora_stage", version, checksum)
        deadline = time.monotonic() + _STAGING_TIMEOUT_S
        while time.monotonic() < deadline:
            staged = await self._call("aurora_staged", version)
            if staged["state"] == "refused":
                raise BackendError(staged["reason"])
            if staged["state"] == "ready":
                return
            await asyncio.sleep(_STAGING_POLL_S)
        raise BackendError(f"version {version} was not read within {_STAGING_TIMEOUT_S:g} s")

    async def _refresh_caches(self, version: int) -> None:
        """Tell vLLM the version, for its own responses, and deal with the drafter's old rows."""
        await self._engine.update_weight_version(f"draft-{version}")
        if version != NO_DRAFTER and self.settings.stale_draft_cache == "reprefill":
            await self._engine.reset_prefix_cache(reset_running_requests=True)

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call every worker between two steps and return the first one's answer.

        Raises:
            BackendError: any worker refused; one that did not is reported with the others.
        """
        answers = await self._engine.collective_rpc(method, args=arguments)
        for answer in answers:
            if isinstance(answer, dict) and "refused" in answer:
                raise BackendError(str(answer["refused"]))
        return answers[0]
