"""Whether a swap left the target alone: its weights, compared with what they were at the start.

while_serving   in a thread of the engine, while it decodes
between_steps   by SGLang's own check, for which it stands still
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from aurora_backend_sglang.control_client import ControlClient
from aurora_core.errors import BackendError
from aurora_core.records import DraftVersion

logger = logging.getLogger(__name__)


class TargetWatch:
    """Looks at the target of one running server after every swap."""

    def __init__(self, client: ControlClient, *, how: str | None) -> None:
        """
        Args:
            client: of the server.
            how: `while_serving`, `between_steps`, `never`, or None for the first where the engine
                can do it and else the second.
        """
        self._client, self._how = client, how
        self._in_force = how
        self._checksums: Mapping[str, str] = {}

    async def begin(self) -> None:
        """Have remembered what the target is as the server was started.

        Raises:
            BackendError: the engine cannot do what was asked for, or its target has changed since
                an earlier run began to look.
        """
        possible = (await self._client.report()).target.possible
        if self._how == "while_serving" and not possible:
            raise BackendError(
                "`backend.verify_target: while_serving` works for a target on a CPU, in one rank; "
                "leave it out, or set `between_steps`"
            )
        self._in_force = self._how or ("while_serving" if possible else "between_steps")
        if self._in_force == "while_serving":
            state = await self._client.check_target()
            if state.num_changed:
                raise BackendError(
                    f"{_tensors(state.num_changed, state.changed)} of the server at "
                    f"{self._client.url} since it was first looked at; start the server again, "
                    "since its answers may be wrong"
                )
        elif self._in_force == "between_steps":
            self._checksums = await self._client.target_checksums()

    async def look(self, version: DraftVersion) -> float:
        """Compare after a swap; return the ms for which the engine decoded nothing by it.

        Raises:
            BackendError: the target is no longer what it was.
        """
        if self._in_force == "never":
            return 0.0
        started = time.perf_counter()
        if self._in_force == "while_serving":
            state = await self._client.check_target()
            num_changed, changed = state.num_changed, state.changed
        else:
            found = await self._client.target_checksums()
            changed = tuple(
                name
                for name in sorted(found.keys() | self._checksums.keys())
                if found.get(name) != self._checksums.get(name)
            )
            num_changed = len(changed)
        took_ms = 1000 * (time.perf_counter() - started)
        logger.debug("the target was compared %s, in %.0f ms", self._in_force, took_ms)
        if num_changed:
            raise BackendError(
                f"{_tensors(num_changed, changed)} before version {version.version} was loaded; "
                "stop the run and start it again, since its answers may be wrong"
            )
        return took_ms if self._in_force == "between_steps" else 0.0


def _tensors(count: int, names: Sequence[str]) -> str:
    return f"{count} tensors of the target, {names[0]!r} among them, are no longer what they were"
