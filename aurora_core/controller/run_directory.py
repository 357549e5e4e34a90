"""The folder of a run: who may write it, what survives a crash, and where everything lies.

Nothing in it is ever half-written: `state.json` and `resolved.yaml` are replaced by rename, and a
line that a crash cut off is removed from the append-only records before the next one is added.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import yaml

from aurora_core.errors import ConfigError
from aurora_core.folders import check_makeable
from aurora_core.versions import RunState, VersionStore, write_run_state

if TYPE_CHECKING:
    from aurora_core.config import RetentionSection, RunConfig
    from aurora_core.records import DraftVersion, TargetSpec

_SECRET_KEY = re.compile(r"(^|_)((password|secret|credential|api_key|access_key)s?|token)$", re.I)
_URL_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")

_KEEP_VERSIONS = 8
_MAX_VERSION_BYTES: int | None = 4 << 30
"""Older versions than the last few are deleted, oldest first, once all take more than this."""


class RunDirectory:
    """Names every file of a run and writes the controller's own ones."""

    def __init__(self, path: Path, *, retention: RetentionSection | None = None) -> None:
        """
        Args:
            path: of the folder; it need not exist.
            retention: which versions stay; None keeps the last few.
        """
        self._retention = retention
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self.spool = self.path / "spool"
        self.versions = self.path / "versions"
        self.learner = self.path / "learner"
        self.requests = self.path / "requests.jsonl"
        self.verdicts = self.path / "verdicts.jsonl"
        self.state = self.path / "state.json"
        self.store = VersionStore(self.versions)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory and hold it for this process; the lock dies with the process.

        Raises:
            ConfigError: another run holds it, or it cannot be written.
        """
        try:
            with self.writable():
                for folder in (self.path, self.logs, self.versions):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = filelock.FileLock(self.path / "run.lock", mode=0o600)
                lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise ConfigError(
                f"run directory {str(self.path)!r} is in use by another aurora run; "
                "stop that one or set another run_dir"
            ) from error
        try:
            with self.writable():
                for record in (self.requests, self.verdicts):
                    _drop_cut_line(record)
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def writable(self) -> Iterator[None]:
        """Make a disk that fails before anything runs the user's to mend.

        Raises:
            ConfigError: for an OSError inside the context.
        """
        try:
            yield
        except filelock.Timeout:  # an OSError too
            raise
        except OSError as error:
            raise ConfigError(
                f"run directory {str(self.path)!r} is not writable: {error.strerror}; "
                "set another run_dir"
            ) from error

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Append what the controller logs to `logs/controller.log` while the context is open.

        Raises:
            ConfigError: the file cannot be opened. Lines that do not fit later are lost.
        """
        with self.writable():
            handler = _LogFile(self.logs / "controller.log", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger("aurora_core")
        level, shown_level = logger.level, logger.getEffectiveLevel()
        # The file holds more than standard error shows, and those handlers ask for no level.
        others = [one for one in logging.root.handlers if one.level == logging.NOTSET]
        for other in others:
            other.setLevel(shown_level)
        logger.addHandler(handler)
        logger.setLevel(min(shown_level, logging.INFO))
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            for other in others:
                other.setLevel(logging.NOTSET)
            with contextlib.suppress(OSError):  # it tries once more to write what did not fit
                handler.close()

    def check_usable(self) -> None:
        """See that a run could make or use the directory; create nothing.

        Raises:
            ConfigError: it, or the nearest folder above it, is no folder that may be written.
        """
        with self.writable():
            for folder in (self.path, self.logs, self.versions):
                check_makeable(folder)

    def check_resumable(self, target: TargetSpec, speculator: str) -> None:
        """Refuse to continue a directory whose drafters were made for something else.

        Raises:
            ConfigError: drafters of another target or of another speculator live here.
        """
        for draft in self.store.list()[-1:]:
            if draft.target_fingerprint != target.fingerprint:
                raise ConfigError(
                    f"run directory {str(self.path)!r} holds drafters of another target than "
                    f"{target.name!r}; set another run_dir"
                )
            if draft.speculator != speculator:
                raise ConfigError(
                    f"run directory {str(self.path)!r} holds drafters of speculator "
                    f"{draft.speculator!r}, not {speculator!r}; set another run_dir"
                )

    def remember(self, state: RunState) -> tuple[DraftVersion, ...]:
        """Write which versions are in use, and delete old ones that take too much room. Blocks.

        Returns:
            The versions that were deleted.

        Raises:
            OSError: the disk failed; the old state is still there.
        """
        write_run_state(self.state, state)
        known = {draft.version: draft for draft in self.store.list()}
        keep, most = _KEEP_VERSIONS, _MAX_VERSION_BYTES
        if self._retention is not None:
            keep, most = self._retention.keep_versions, self._retention.max_bytes
        pruned = self.store.prune(state=state, keep_last=keep, max_bytes=most)
        return tuple(known[version] for version in pruned if version in known)

    def write_resolved(self, config: RunConfig, resolved: Mapping[str, Any]) -> None:
        """Write the configuration with defaults, and what it resolved to, without secrets.

        Raises:
            ConfigError: the directory cannot be written.
        """
        document = {
            "config": without_secrets(config.model_dump(mode="json")),
            "resolved": without_secrets(dict(resolved)),
        }
        with self.writable():
            replace_file(self.path / "resolved.yaml", yaml.safe_dump(document, sort_keys=False))


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Lose a line that does not fit; the default writes a traceback to standard error."""


def replace_file(path: Path, text: str) -> None:
    """Replace a file in one step.

    Raises:
        OSError: the disk failed; the old file is still there.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add one JSON line; the file is created for the owner alone, as it tells about users."""
    append_lines(path, [record])


def append_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Add JSON lines.

    Raises:
        OSError: the disk failed. The file is as it was: half a line would spoil the next one.
    """
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON-lines file; none when it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]


def without_secrets(value: Any, key: str = "") -> Any:
    """Return plain data with passwords, keys and user names in URLs replaced by stars."""
    if isinstance(value, dict):
        return {name: without_secrets(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(inner, key) for inner in value]
    if isinstance(value, str):
        return "***" if _SECRET_KEY.search(key) else _URL_PASSWORD.sub("***@", value)
    return value


def _drop_cut_line(path: Path) -> None:
    """Remove a last line that a killed process did not finish."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as stream:
            stream.truncate(content.rfind(b"\n") + 1)
