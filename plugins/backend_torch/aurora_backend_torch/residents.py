"""The drafters that are loaded, and which of them is live."""

from __future__ import annotations

import hashlib
import logging
import threading
from pathlib import Path

import torch

from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import Drafter, Speculator
from aurora_core.records import NO_DRAFTER, UNTRAINED, Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.versions import WEIGHTS, VersionStore

logger = logging.getLogger(__name__)


class Residents:
    """Loads drafters beside serving and hands them out by version. Thread-safe."""

    def __init__(
        self,
        speculator: Speculator,
        weights: TargetWeights,
        *,
        versions_dir: Path,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Start with no drafter.

        Args:
            speculator: reads checkpoints and makes drafters.
            weights: the target's tensors, for what a drafter shares.
            versions_dir: the only folder that is read.
            capacity: drafters held side by side, the live one included.
            dtype: of the drafters' matrices.
            device: where they run.
        """
        self._speculator, self._weights = speculator, weights
        self._store, self._capacity = VersionStore(versions_dir), capacity
        self._dtype, self._device = dtype, device
        self._lock = threading.Lock()
        self._drafters: dict[int, Drafter] = {}
        self._checksums: dict[int, str] = {}
        self.live_version = NO_DRAFTER

    @property
    def learn_by_observing(self) -> bool:
        """Whether a loaded drafter takes anything from the traces it is shown."""
        return any(type(one).observe is not Drafter.observe for one in self._drafters.values())

    @property
    def live_checksum(self) -> str:
        """sha256 of the live checkpoint as it was read; empty without a drafter."""
        return self._checksums.get(self.live_version, "")

    def get(self, version: int) -> Drafter | None:
        """Return a loaded drafter, None if it is not loaded."""
        return self._drafters.get(version)

    def make_untrained(self) -> None:
        """Make the drafter of a speculator that does not train, and make it live."""
        module = self._speculator.build_module(self._weights, ())
        drafter = self._speculator.drafter(module, dtype=self._dtype, device=self._device)
        with self._lock:
            self._drafters[UNTRAINED], self._checksums[UNTRAINED] = drafter, ""
            self.live_version = UNTRAINED

    def load(self, version: int, checksum: str | None = None) -> str:
        """Read and check a version from disk; return its checksum.

        Raises:
            CheckpointError: it is incomplete, malformed, not what `checksum` says or made for
                another target.
        """
        if version == UNTRAINED and version in self._drafters:
            return ""
        path = self._store.directory(version)
        weights_file = path / WEIGHTS
        if not weights_file.is_file():
            raise CheckpointError(
                f"there is no drafter version {version} to load; "
                "publish it into the run's versions folder first"
            )
        found = hashlib.sha256(weights_file.read_bytes()).hexdigest()
        if checksum and found != checksum:
            raise CheckpointError(
                f"drafter version {version} has checksum {found[:12]} on disk and "
                f"{checksum[:12]} was announced; publish it again"
            )
        if self._drafters.get(version) is None or self._checksums[version] != found:
            module = self._speculator.load(path, self._weights)
            drafter = self._speculator.drafter(module, dtype=self._dtype, device=self._device)
            with self._lock:
                self._drafters[version], self._checksums[version] = drafter, found
        return found

    def activate(self, version: int, in_use: set[int]) -> None:
        """Make a loaded version live and let go of the oldest that nobody uses."""
        with self._lock:
            self.live_version = version
            for old in sorted(self._drafters):
                if len(self._drafters) <= self._capacity:
                    break
                if old not in (version, UNTRAINED) and old not in in_use:
                    self._drop(old)

    def reserve(self, version: int) -> None:
        """Check that a version may be loaded beside the live one.

        Raises:
            BackendError: as many as allowed are loaded.
        """
        if version not in self._drafters and len(self._drafters) >= self._capacity:
            raise BackendError(
                f"{len(self._drafters)} drafters are resident, which is the limit; unload one "
                "first or raise `backend.num_resident_drafters`"
            )

    def unload(self, version: int) -> None:
        """Let go of a version.

        Raises:
            BackendError: it is live or not loaded.
        """
        with self._lock:
            if version == self.live_version:
                raise BackendError(f"version {version} is live; make another one live first")
            if version not in self._drafters:
                raise BackendError(f"version {version} is not resident; nothing to unload")
            self._drop(version)

    def drop_broken(self, version: int) -> None:
        """Let go of a drafter that failed while drafting; the engine goes on without it."""
        with self._lock:
            if version == self.live_version:
                self.live_version = NO_DRAFTER
            self._drop(version)

    def observe(self, trace: Trace) -> None:
        """Show a finished request to every drafter that learns from it without gradients."""
        for drafter in list(self._drafters.values()):
            drafter.observe(trace)

    def _drop(self, version: int) -> None:
        self._drafters.pop(version, None)
        self._checksums.pop(version, None)
        logger.info("drafter version %d is not resident any more", version)
