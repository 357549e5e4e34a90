"""What a person may tell a run: make a version live, go back, switch off, let go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aurora_core.controller.control_socket import (
    LetGo,
    Promote,
    RollBack,
    SwitchOff,
    serve_commands,
)
from aurora_core.controller.swapping import Swapping
from aurora_core.errors import BackendError, CheckpointError, ConfigError
from aurora_core.versions import VersionStore

_STAYS = "it stays until `aurora promote --auto`"


class Operator:
    """Carries out commands on a run that serves."""

    def __init__(
        self, swapping: Swapping, store: VersionStore, *, is_ending: Callable[[], bool]
    ) -> None:
        """
        Args:
            swapping: makes versions live.
            store: knows whether a version is intact.
            is_ending: whether the run measures or stops, and nothing may change any more.
        """
        self._swapping, self._store, self._is_ending = swapping, store, is_ending

    async def run(self, run_dir: Path) -> None:
        """Take commands until cancelled."""
        await serve_commands(run_dir, self.obey)

    async def obey(self, command: Promote | RollBack | SwitchOff | LetGo) -> str:
        """Carry out a command; return a sentence about it.

        Raises:
            ConfigError: the run is ending, or there is nowhere to go back to.
            CheckpointError: there is no such version, or it is damaged.
            BackendError: the engine refuses it.
        """
        if self._is_ending():
            raise ConfigError("the run is ending: nothing is changed any more")
        match command:
            case Promote(version=version):
                return await self._choose(version, done=f"version {version} is live")
            case RollBack(version=None):
                previous = self._swapping.previous
                if previous is None:
                    raise ConfigError(
                        "there is no previous version to roll back to; name one, as in "
                        "`aurora rollback 3`"
                    )
                number = previous.version
                return await self._choose(number, done=f"rolled back to version {number}")
            case RollBack(version=version):
                return await self._choose(version, done=f"rolled back to version {version}")
            case SwitchOff():
                return await self._choose(None, done="speculation is switched off")
            case LetGo():
                await self._swapping.let_go(reason="a person lets the swap policy decide again")
                return "the swap policy decides again"

    async def _choose(self, version: int | None, *, done: str) -> str:
        if version is not None:
            self._store.verify(version)
        try:
            receipt = await self._swapping.choose(version, reason=f"a person decided: {done}")
        except (BackendError, CheckpointError) as error:
            raise type(error)(f"nothing was changed: {error}") from error
        return f"{done}; decoding waited {receipt.stall_ms:.1f} ms, and {_STAYS}"
