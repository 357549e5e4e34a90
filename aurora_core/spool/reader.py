"""The learner's end of a spool: which traces there are, which were seen, and which to give next."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aurora_core.errors import TraceError
from aurora_core.interfaces import TraceReader
from aurora_core.records import NO_DRAFTER
from aurora_core.spool.directory import Counts, Entry, SpoolDirectory
from aurora_core.spool.trace_cache import TraceCache
from aurora_core.trace_file import decode_trace, trace_metadata

if TYPE_CHECKING:
    from aurora_core.records import Trace
    from aurora_core.spool.options import SpoolOptions

logger = logging.getLogger(__name__)

SAVE_COUNTS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Held:
    """A trace that is known to the reader."""

    digest: str
    held_out: bool
    min_draft_version: int


class SpoolReader(TraceReader):
    """Keeps names and headers of all traces in memory, tensors only within a byte budget.

    Unreadable files are moved to `rejected/` and counted, files that disappear are forgotten:
    neither ends the learner. New traces are given in order of arrival, but not those behind which
    `recent_traces` newer ones wait; replayed are above all the newest. Reasons in the sink's
    counts: `rejected`, `duplicate`, `stale`, `evicted`, `expired`.

    Not thread-safe.
    """

    def __init__(self, options: SpoolOptions) -> None:
        self._options = options
        self._directory = SpoolDirectory(options.path)
        self._directory.prepare()
        self._counts = Counts()
        self._saved_shed = 0
        self._next_save = 0.0
        self._cache = TraceCache(options.cache_bytes)
        self._random = random.Random(options.seed)
        self._newest_version = NO_DRAFTER
        self._reset()

    def poll(self) -> int:
        """Take in new traces and drop those that are gone, too old, too stale or too many.

        Raises:
            TraceError: the spool's folder cannot be read.
        """
        entries = self._trim()
        names = {entry.name for entry in entries}
        for name in [name for name in self._held if name not in names]:
            self._forget(name)
        self._ignored &= names
        num_taken = 0
        for entry in entries:
            if entry.name in self._held or entry.name in self._ignored:
                continue
            held = self._take(entry)
            if held is not None:
                num_taken += 1
                if not held.held_out:
                    self._fresh.append(entry.name)
        self._drop_stale()
        while len(self._fresh) > self._options.recent_traces:
            insort(self._seen, self._fresh.popleft())
        self._save_counts()
        return num_taken

    def sample(self, num_traces: int, *, fresh: int) -> list[Trace]:
        """Return fresh traces, oldest first, then replayed ones; no trace twice in one call."""
        new: dict[str, Trace] = {}
        while self._fresh and len(new) < min(fresh, num_traces):
            name = self._fresh.popleft()
            trace = self._load(name)
            if trace is not None:
                new[name] = trace
        replayed: dict[str, Trace] = {}
        # `_load` takes unreadable traces out of `_seen`, so this ends.
        while len(replayed) < min(num_traces - len(new), len(self._seen)):
            name = self._draw()
            if name not in replayed:
                trace = self._load(name)
                if trace is not None:
                    replayed[name] = trace
        for name in new:
            insort(self._seen, name)
        return [*new.values(), *replayed.values()]

    def holdout(self, num_traces: int) -> list[Trace]:
        """Return the newest held-out traces, oldest first; staleness does not matter to them."""
        traces: list[Trace] = []
        names = sorted((name for name, held in self._held.items() if held.held_out), reverse=True)
        for name in names:
            if len(traces) >= num_traces:
                break
            trace = self._load(name)
            if trace is not None:
                traces.append(trace)
        return traces[::-1]

    def iterate(self) -> Iterator[Trace]:
        """Yield every readable trace, held out or not; what was seen does not change."""
        for entry in self._directory.entries():
            trace = self._decode(entry.name)
            if trace is not None:
                yield trace

    @property
    def num_training(self) -> int:
        """Training traces held now, seen or not."""
        return len(self._fresh) + len(self._seen)

    @property
    def cached_bytes(self) -> int:
        """Bytes of decoded traces in memory now, never above `cache_bytes`."""
        return self._cache.num_bytes

    def state_dict(self) -> dict[str, object]:
        """Return which traces were seen, the draws' random state and the newest draft version."""
        version, internal, gauss = self._random.getstate()
        return {
            "format": 1,
            "fresh": list(self._fresh),
            "seen": list(self._seen),
            "newest_version": self._newest_version,
            "random": [version, list(internal), gauss],
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a state; held-out and new traces are taken in by the next `poll`.

        Raises:
            TraceError: not a state of this reader, or the spool's folder cannot be read.
        """
        plain: Mapping[str, Any] = state
        try:
            if plain["format"] != 1:
                raise ValueError(f"format {plain['format']!r}")
            seen, fresh = [str(name) for name in plain["seen"]], [str(n) for n in plain["fresh"]]
            newest = int(plain["newest_version"])
            version, internal, gauss = plain["random"]
            self._random.setstate((version, tuple(internal), gauss))
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(
                f"the saved state of the trace reader cannot be used: {error}"
            ) from error
        self._reset()
        self._newest_version = newest
        entries = {entry.name: entry for entry in self._trim()}
        for names, add in ((sorted(seen), self._seen.append), (fresh, self._fresh.append)):
            self._restore(names, entries, add)

    def _restore(
        self, names: list[str], entries: Mapping[str, Entry], add: Callable[[str], None]
    ) -> None:
        for name in names:
            held = self._take(entries[name]) if name in entries else None
            if held is not None and not held.held_out:
                add(name)

    def _reset(self) -> None:
        self._held: dict[str, _Held] = {}
        self._digests: set[str] = set()
        self._ignored: set[str] = set()
        self._fresh: deque[str] = deque()
        self._seen: list[str] = []
        """By time of arrival, with which names begin."""

    def _trim(self) -> list[Entry]:
        return self._directory.trim(
            max_bytes=self._options.max_bytes,
            max_age_s=self._options.max_age_s,
            shed=self._counts.shed,
        )

    def _take(self, entry: Entry) -> _Held | None:
        """Read the header of a file; None when it is unfit, a duplicate or gone."""
        if entry.digest in self._digests:
            self._counts.shed["duplicate"] += 1
            if not self._directory.remove(entry.name):
                self._ignored.add(entry.name)
            return None
        path = self._directory.traces / entry.name
        try:
            metadata = trace_metadata(path)
        except TraceError as error:
            if path.exists():
                self._reject(entry.name, error)
            return None
        held = _Held(
            digest=entry.digest,
            held_out=is_held_out(metadata.request_key, self._options.holdout_fraction),
            min_draft_version=metadata.min_draft_version,
        )
        self._held[entry.name] = held
        self._digests.add(entry.digest)
        self._newest_version = max(self._newest_version, metadata.max_draft_version)
        return held

    def _draw(self) -> str:
        """Return a seen trace: one of the newest, or any."""
        is_recent = self._random.random() < self._options.recent_share
        oldest = max(len(self._seen) - self._options.recent_traces, 0) if is_recent else 0
        return self._seen[self._random.randrange(oldest, len(self._seen))]

    def _load(self, name: str) -> Trace | None:
        """Return a trace through the cache; an unreadable or vanished one is forgotten."""
        trace = self._cache.get(name)
        if trace is None:
            trace = self._decode(name)
            if trace is None:
                self._forget(name)
            else:
                self._cache.add(name, trace)
        return trace

    def _decode(self, name: str) -> Trace | None:
        data = self._directory.read(name)
        if data is None:
            return None
        try:
            return decode_trace(data, name=str(self._directory.traces / name))
        except TraceError as error:
            self._reject(name, error)
            return None

    def _reject(self, name: str, error: TraceError) -> None:
        logger.warning("%s; moved to rejected/", error)
        self._counts.shed["rejected"] += 1
        self._directory.reject(name)
        self._ignored.add(name)  # in case it could not be moved

    def _forget(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            self._digests.discard(held.digest)
        self._cache.remove(name)
        for names in (self._fresh, self._seen):
            with contextlib.suppress(ValueError):
                names.remove(name)

    def _drop_stale(self) -> None:
        limit = self._options.max_staleness
        if limit is None:
            return

        def is_stale(name: str) -> bool:
            version = self._held[name].min_draft_version
            # What was decoded without a drafter depends on none.
            return version != NO_DRAFTER and self._newest_version - version > limit

        for name in [name for name in (*self._fresh, *self._seen) if is_stale(name)]:
            self._forget(name)
            self._ignored.add(name)
            self._counts.shed["stale"] += 1

    def _save_counts(self) -> None:
        now, num_shed = time.monotonic(), self._counts.shed.total()
        if num_shed == self._saved_shed or now < self._next_save:
            return
        self._next_save = now + SAVE_COUNTS_EVERY_S
        try:
            self._directory.write_counts("reader", self._counts)
            self._saved_shed = num_shed
        except OSError as error:
            logger.warning("counts cannot be saved in %s: %s", self._directory.path, error)


def is_held_out(request_key: str, fraction: float) -> bool:
    """Tell the side of the split of a request; equal keys give equal answers everywhere."""
    digest = hashlib.sha256(b"holdout:" + request_key.encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64
