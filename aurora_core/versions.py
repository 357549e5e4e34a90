"""Drafter versions on disk, and which of them is live. Imports no torch.

    VERSIONS/v000003/          complete: it appeared by rename and never changes
    VERSIONS/v000004.partial/  being written by the learner, or left by one that was killed
    RUN_DIR/state.json         champion, previous, challenger

The learner stages, the controller judges and prunes, engines read. One learner per folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from aurora_core.errors import CheckpointError
from aurora_core.folders import num_bytes, remove
from aurora_core.records import DraftVersion, Holdout
from aurora_core.wire import first_fault, from_json, to_json

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
_RECORD = "version.json"
_NAME = re.compile(r"v(\d{6,})")
_LEFTOVER = re.compile(r"v\d{6,}\.(partial|deleted)")


class VersionStore:
    """A folder of versions. Several processes may open it; only one of them may stage."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._told: set[str] = set()

    def next_version(self) -> int:
        """Return the number of the next version: numbers of broken ones are not used again."""
        return max(self.numbers(), default=0) + 1

    def stage(
        self,
        version: int,
        write: Callable[[Path], None],
        *,
        parent: int | None,
        speculator: str,
        target_fingerprint: str,
        global_step: int,
        num_tokens_trained: int,
        metrics: Mapping[str, float] | None = None,
        holdout: Holdout | None = None,
        objective: str = "",
        data_window: tuple[float, float] | None = None,
    ) -> DraftVersion:
        """Write a version; its directory is complete or absent, whenever the process dies.

        Args:
            version: usually `next_version()`.
            write: fills the directory it is given with config.json and model.safetensors, as
                `Speculator.save` does.

        Raises:
            CheckpointError: the version exists, or `write` wrote no model.safetensors.
            OSError: the disk failed.
        """
        path = self.directory(version)
        if path.exists():
            raise CheckpointError(f"version {version} exists already in {str(self.path)!r}")
        self._clear_leftovers("partial")
        partial = path.with_name(f"{path.name}.partial")
        partial.mkdir(parents=True)
        try:
            write(partial)
            draft = DraftVersion(
                version=version,
                path=str(path),
                parent=parent,
                speculator=speculator,
                target_fingerprint=target_fingerprint,
                global_step=global_step,
                num_tokens_trained=num_tokens_trained,
                created=time.time(),
                checksum=self._checksum(partial, version),
                metrics=dict(metrics or {}),
                holdout=holdout,
                objective=objective,
                data_window=data_window,
            )
            (partial / _RECORD).write_text(to_json(draft), encoding="utf-8")
            for file in partial.iterdir():
                _force_to_disk(file)
            _force_to_disk(partial)
            partial.rename(path)
            _force_to_disk(self.path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return draft

    def read(self, version: int) -> DraftVersion:
        """Return the record of a version; its weights are not looked at.

        Raises:
            CheckpointError: there is no such version, or its record is broken.
        """
        path = self.directory(version)
        try:
            record = from_json(DraftVersion, (path / _RECORD).read_bytes())
        except OSError as error:
            if not path.is_dir() and os.path.lexists(path):
                raise CheckpointError(
                    f"version {version} in {str(path)!r} is broken: it is no folder; delete it"
                ) from error
            if not path.is_dir():
                raise CheckpointError(
                    f"version {version} is not in {str(self.path)!r}; it holds "
                    f"{', '.join(map(str, self.numbers())) or 'none'}"
                ) from error
            raise CheckpointError(
                f"version {version} in {str(path)!r} is broken: {_RECORD} cannot be read: "
                f"{error.strerror}; delete the folder"
            ) from error
        except ValidationError as error:
            where, fault = first_fault(error)
            raise CheckpointError(
                f"version {version} in {str(path)!r} is broken: {_RECORD}: "
                f"{f'{where}: ' if where else ''}{fault}; delete the folder"
            ) from error
        if record.version != version:
            raise CheckpointError(
                f"version {version} in {str(path)!r} is broken: {_RECORD} describes version "
                f"{record.version}; delete the folder"
            )
        # A run directory may have been moved since.
        return replace(record, path=str(path))

    def verify(self, version: int) -> DraftVersion:
        """Read a version and compare its weights with their checksum.

        Raises:
            CheckpointError: missing, broken, or its weights are not those that were published.
        """
        record = self.read(version)
        checksum = self._checksum(Path(record.path), version)
        if checksum != record.checksum:
            raise CheckpointError(
                f"version {version} in {record.path!r} is damaged: {WEIGHTS} has sha256 "
                f"{checksum[:12]}..., {_RECORD} says {record.checksum[:12]}...; delete the folder"
            )
        return record

    def list(self) -> tuple[DraftVersion, ...]:
        """Return all versions whose record can be read, oldest first; logs the others once."""
        records = []
        for version in self.numbers():
            try:
                records.append(self.read(version))
            except CheckpointError as error:
                if str(error) not in self._told:  # a run lists them at every change
                    self._told.add(str(error))
                    logger.warning("%s", error)
        return tuple(records)

    def prune(
        self, *, state: RunState, keep_last: int, max_bytes: int | None = None
    ) -> tuple[int, ...]:
        """Delete old versions; return their numbers.

        Champion, previous, challenger, the version on trial and the newest one are never deleted,
        whatever the limits say.

        Args:
            state: which versions are in use.
            keep_last: newest versions to keep, at least.
            max_bytes: older ones than those are deleted, oldest first, while all versions
                together take more; None deletes all of them.
        """
        self._clear_leftovers("deleted")
        numbers = self.numbers()
        used = {state.champion, state.previous, state.challenger, state.trial}
        candidates = [number for number in numbers[: -max(keep_last, 1)] if number not in used]
        sizes = {number: num_bytes(self.directory(number)) for number in numbers}
        deleted = []
        for number in candidates:
            if max_bytes is not None and sum(sizes.values()) <= max_bytes:
                break
            self._delete(number)
            del sizes[number]
            deleted.append(number)
        return tuple(deleted)

    def directory(self, version: int) -> Path:
        """Return the folder of a version, whether it exists or not."""
        if version < 0:
            raise CheckpointError(f"version {version} is not a version number")
        return self.path / f"v{version:06d}"

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of all versions, oldest first; their records are not looked at."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return ()
        numbers = {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
        # Another spelling of a number is nobody's version.
        return tuple(sorted(one for one in numbers if self.directory(one).name in names))

    def _checksum(self, path: Path, version: int) -> str:
        try:
            with (path / WEIGHTS).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(
                f"version {version} in {str(path)!r} is broken: {WEIGHTS} cannot be read: "
                f"{error.strerror}"
            ) from error

    def _delete(self, version: int) -> None:
        # Renamed first: nobody finds a version half deleted.
        deleted = self.path / f"{self.directory(version).name}.deleted"
        with contextlib.suppress(FileNotFoundError):
            self.directory(version).rename(deleted)
        remove(deleted)

    def _clear_leftovers(self, kind: str) -> None:
        for path in self.path.glob(f"*.{kind}"):
            if _LEFTOVER.fullmatch(path.name):
                logger.info("removing %s, left by a process that was killed", path)
                remove(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Which versions a run uses; the controller writes it, a later run continues from it."""

    champion: int | None = None
    """Live version; None serves without a drafter."""
    previous: int | None = None
    """Version that was live before; where a roll back goes."""
    challenger: int | None = None
    """Newest published version that has not been judged to its end."""
    trial: int | None = None
    """Version that serves a share of the requests; judged anew by a later run unless a newer one
    waits."""
    pinned: bool = False
    """Whether a person chose the champion, or none: no verdict replaces it."""
    switched_off: bool = False
    """Whether there is no champion because nothing beat decoding without speculation."""


def read_run_state(path: Path) -> RunState:
    """Read `state.json`; a run that never swapped has none and gets an empty state.

    Raises:
        CheckpointError: the file is broken.
    """
    try:
        return from_json(RunState, path.read_bytes())
    except FileNotFoundError:
        return RunState()
    except (OSError, ValidationError) as error:
        raise CheckpointError(
            f"the run state {str(path)!r} cannot be read; delete it to start without a live "
            "version, or restore it"
        ) from error


def write_run_state(path: Path, state: RunState) -> None:
    """Replace `state.json` at once: a reader finds the old state or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        partial.write_text(to_json(state), encoding="utf-8")
        _force_to_disk(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _force_to_disk(path.parent)


def _force_to_disk(path: Path) -> None:
    """Make a file or a rename outlive the machine; weights are worth the wait."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
