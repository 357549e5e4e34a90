"""Checkpoints to resume from: complete or absent, the newest two, owner-only like the traces.

A checkpoint is Lightning's own (weights, optimizer, scheduler, loops), with the sink's cursor from
`TraceStream` and counters, random states and identity from `LearnerModule`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch

from aurora_core.errors import CheckpointError
from aurora_core.learner.lineage import check_identity

if TYPE_CHECKING:
    from aurora_core.learner.module import LearnerModule

log = logging.getLogger(__name__)

_NUM_KEPT = 2


class Checkpoints:
    """The checkpoints in the learner's folder.

    Args:
        folder: of the learner; created if needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, trainer: lightning.Trainer) -> None:
        """Write a checkpoint and remove old ones. Called by every rank.

        Raises:
            OSError: it cannot be written; the earlier ones stay.
        """
        partial = self.folder / "checkpoint.partial"
        try:
            trainer.save_checkpoint(partial)
        except OSError:
            # Half a checkpoint would keep the last room of a full disk from all that still fits.
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        if not trainer.is_global_zero:
            return
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.chmod(0o600)
        partial.replace(self.folder / f"step-{trainer.global_step:09d}.ckpt")
        for old in self._newest_first()[_NUM_KEPT:]:
            old.unlink(missing_ok=True)

    def newest_usable(self, module: LearnerModule) -> tuple[Path, int] | None:
        """Return the newest readable checkpoint and its step; None if there is none.

        Raises:
            CheckpointError: it was written for something else than `module`.
        """
        for path in self._newest_first():
            try:
                content = torch.load(path, map_location="cpu", weights_only=True)
                step, identity = content["global_step"], content["aurora"]["lineage"]
            # What a damaged archive raises is not documented.
            except Exception as error:
                log.warning("checkpoint %s cannot be read, trying an older one: %s", path, error)
                continue
            check_identity(identity, module.lineage, self.folder)
            _check_tensors(content["state_dict"], module, path)
            return path, step
        return None

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.ckpt"), reverse=True)


class CheckpointLearner(lightning.Callback):
    """Writes a checkpoint every so many seconds, and when training ends.

    Args:
        checkpoints: where.
        every_s: seconds between two; a batch that takes longer delays it.
    """

    def __init__(self, checkpoints: Checkpoints, every_s: float) -> None:
        self.checkpoints, self.every_s = checkpoints, every_s
        self._saved_at = time.monotonic()
        self._saved_batch = 0
        self._num_batches = 0

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Save if it is time."""
        self._num_batches += 1
        is_due = time.monotonic() - self._saved_at >= self.every_s
        # Saving is collective: rank 0's clock decides for all.
        if trainer.strategy.broadcast(is_due):
            self._save(trainer)

    def on_train_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Save what was learned since the last time."""
        if self._num_batches > self._saved_batch:
            self._save(trainer)

    def _save(self, trainer: lightning.Trainer) -> None:
        try:
            self.checkpoints.save(trainer)
        except OSError as error:
            log.warning("no checkpoint was written, training goes on: %s", error)
        self._saved_at, self._saved_batch = time.monotonic(), self._num_batches


def _check_tensors(stored: Mapping[str, Any], module: LearnerModule, path: Path) -> None:
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    if differing := sorted(n for n in own | found if own.get(n) != found.get(n)):
        raise CheckpointError(
            f"checkpoint {str(path)!r} does not fit the drafter that the speculator builds now: "
            f"{differing[0]!r} is {found.get(differing[0], 'missing')} instead of "
            f"{own.get(differing[0], 'absent')}; remove {str(path.parent)!r} to learn anew"
        )
