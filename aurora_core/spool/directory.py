"""The folder of a spool: names, budget, leftovers and counts. Imports no torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aurora_core.errors import TraceError
from aurora_core.folders import check_makeable
from aurora_core.trace_file import write_private

PARTIAL_LIFETIME_S = 600.0
"""A partial file this old has no writer any more: writing one takes well under a second."""

MAX_REJECTED = 32
"""Unreadable files kept for inspection."""

_ROOM = 0.95
"""Share of the budget to which a full spool is cleared, so that not every write has to clear."""

_NAME = re.compile(r"(\d{16})-([0-9a-f]{16})\.safetensors")


def trace_digest(trace_id: str) -> str:
    """Return 16 hexadecimal digits that stand for a trace id in file names."""
    return hashlib.sha256(trace_id.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A complete trace in the spool; entries sort by arrival."""

    name: str
    num_bytes: int

    @property
    def arrival(self) -> float:
        """Unix seconds at which its writer took it."""
        return int(self.name[:16]) / 1e6

    @property
    def digest(self) -> str:
        """Digest of its trace id."""
        return self.name[17:33]


@dataclass(slots=True)
class Counts:
    """What one writer or reader kept and let go, since it started."""

    kept: int = 0
    shed: Counter[str] = field(default_factory=Counter)


class SpoolDirectory:
    """One process's view of the folder. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.traces = self.path / "traces"
        self.partial = self.path / "partial"
        self.rejected = self.path / "rejected"
        self.counts = self.path / "counts"
        # Unique over machines, processes and restarts; names its writer to a human.
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._sizes: dict[str, int] = {}

    def prepare(self) -> None:
        """Create the folders and write to each.

        Raises:
            TraceError: one of them cannot be written.
        """
        with self._writable():
            for folder in self._folders():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                probe = folder / f".probe-{self._owner}"
                probe.touch(mode=0o600)
                probe.unlink()

    def check(self) -> None:
        """See that the folders could be made and written to; create nothing.

        Raises:
            TraceError: one of them could not.
        """
        with self._writable():
            for folder in self._folders():
                check_makeable(folder)

    def _folders(self) -> tuple[Path, ...]:
        return (self.path, self.traces, self.partial, self.rejected, self.counts)

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TraceError(
                f"the trace spool {str(self.path)!r} cannot be written: {error.strerror}; "
                "set `trace_sink.path` to a folder that can"
            ) from error

    def entries(self) -> list[Entry]:
        """Return the complete traces, oldest first.

        Raises:
            TraceError: the folder cannot be read.
        """
        try:
            names = sorted(name for name in os.listdir(self.traces) if _NAME.fullmatch(name))
        except OSError as error:
            raise TraceError(
                f"the trace spool {str(self.path)!r} cannot be read: {error.strerror}"
            ) from error
        # Files never change, so each is measured once, however often the folder is listed.
        sizes: dict[str, int] = {}
        for name in names:
            size = self._sizes.get(name)
            if size is None:
                size = _readable_size(self.traces / name)
            if size is not None:
                sizes[name] = size
        self._sizes = sizes
        return [Entry(name, size) for name, size in sizes.items()]

    def add(self, data: bytes, digest: str) -> Entry:
        """Write a trace. Raises OSError; the spool is unchanged then."""
        name = f"{time.time_ns() // 1000:016d}-{digest}.safetensors"
        write_private(data, self.traces / name, partial=self.partial / f"{self._owner}-{name}")
        self._sizes[name] = len(data)
        return Entry(name, len(data))

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None if it is gone.

        The content is copied: a mapped file that is removed on a shared filesystem kills the
        process that touches it.
        """
        try:
            return (self.traces / name).read_bytes()
        except OSError:
            return None

    def remove(self, name: str) -> bool:
        """Delete a trace; False if it was gone or cannot be deleted."""
        return _unlink(self.traces / name)

    def reject(self, name: str) -> None:
        """Put a file out of every reader's way, for inspection."""
        with contextlib.suppress(OSError):
            (self.traces / name).replace(self.rejected / name)

    def trim(
        self, *, max_bytes: int, max_age_s: float, shed: Counter[str], reserve: int = 0
    ) -> list[Entry]:
        """Remove what is too old, and the oldest traces until `reserve` more bytes fit.

        Args:
            max_bytes: budget of the whole folder.
            max_age_s: age limit of every file in it.
            shed: removals are counted here, as `expired` and `evicted`.
            reserve: bytes about to be written.

        Returns:
            What is left, oldest first.
        """
        now = time.time()
        oldest = now - max_age_s
        leftovers = self._sweep(oldest=oldest, stalled=now - PARTIAL_LIFETIME_S)
        left: list[Entry] = []
        for entry in self.entries():
            if entry.arrival >= oldest:
                left.append(entry)
            elif self.remove(entry.name):
                shed["expired"] += 1
        total = leftovers + sum(entry.num_bytes for entry in left)
        if total + reserve > max_bytes:
            # Rejected files are worth less than any trace.
            total -= sum(_remove_all(self.rejected))
            num_evicted = 0
            for entry in left:
                if total + reserve <= max_bytes * _ROOM:
                    break
                num_evicted += 1
                total -= entry.num_bytes
                if self.remove(entry.name):
                    shed["evicted"] += 1
            left = left[num_evicted:]
        return left

    def num_bytes(self) -> int:
        """Return the bytes of all files that count against the budget."""
        extra = sum(_size(path) for folder in (self.partial, self.rejected) for path in _in(folder))
        return extra + sum(entry.num_bytes for entry in self.entries())

    def write_counts(self, role: str, counts: Counts) -> None:
        """Save this process's counts. Raises OSError."""
        path = self.counts / f"{role}-{self._owner}.json"
        data = json.dumps({"kept": counts.kept, "shed": dict(counts.shed)}).encode()
        write_private(data, path, partial=self.counts / f".{path.name}")

    def total_counts(self) -> Counts:
        """Add up the saved counts of all writers and readers there ever were."""
        total = Counts()
        for path in _in(self.counts):
            if path.suffix != ".json" or path.name.startswith("."):
                continue
            # A file damaged by a full disk loses its counts, never the call.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                saved = json.loads(path.read_bytes())
                total.kept += int(saved["kept"])
                total.shed.update({str(key): int(value) for key, value in saved["shed"].items()})
        return total

    def _sweep(self, *, oldest: float, stalled: float) -> int:
        """Remove dead partial files and old or surplus rejected ones; return the bytes left."""
        for path in _in(self.partial):
            if _modified(path) < stalled:
                _unlink(path)
        rejected = sorted(_in(self.rejected))
        surplus: Collection[Path] = rejected[:-MAX_REJECTED]
        for path in rejected:
            if path in surplus or _modified(path) < oldest:
                _unlink(path)
        return sum(_size(path) for folder in (self.partial, self.rejected) for path in _in(folder))


def _in(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _remove_all(folder: Path) -> list[int]:
    """Empty a folder; return the sizes of what was removed."""
    sizes = [(path, _size(path)) for path in _in(folder)]
    return [size for path, size in sizes if _unlink(path)]


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _readable_size(path: Path) -> int | None:
    """Return the bytes of what may be a trace; None if it is gone, or may not be opened at all.

    A folder is for readers to reject. A pipe or a device of a trace's name is left alone: opening
    one can last for ever.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    usable = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return status.st_size if usable else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return float("inf")
