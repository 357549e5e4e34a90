"""Options of the spool, and the address that carries them to other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from pydantic import ByteSize, ConfigDict, Field, ValidationError

from aurora_core.errors import TraceError
from aurora_core.interfaces import Options
from aurora_core.wire import first_fault

_SCHEME = "spool"


class SpoolOptions(Options):
    """Where traces lie, how many, how long, and how they are split."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    path: Path
    """Folder of the spool; created if needed, readable by its owner only."""
    max_bytes: ByteSize = Field(ByteSize(1 << 30), gt=0)
    """Bytes on disk, at most; the oldest traces go first. `2GiB` is understood."""
    max_age_s: float = Field(86_400.0, gt=0)
    """Seconds after which a trace is deleted, learned from or not."""
    holdout_fraction: float = Field(0.1, ge=0, lt=1)
    """Share of requests, by their key, that is never trained on but scores new versions."""
    max_staleness: int | None = Field(None, ge=0)
    """Skip traces drafted by a version so much older than the newest seen; null takes all."""
    sampling_rate: float = Field(1.0, ge=0, le=1)
    """Share of requests that is recorded."""
    queue_traces: int = Field(64, ge=1)
    """Traces that wait in the engine's memory for the disk, at most; others are shed."""
    queue_bytes: ByteSize = Field(ByteSize(128 << 20), gt=0)
    """Bytes that wait in the engine's memory for the disk, at most."""
    cache_bytes: ByteSize = Field(ByteSize(256 << 20), ge=0)
    """Bytes of decoded traces that the learner keeps in memory, at most."""
    recent_traces: int = Field(64, ge=1)
    """Newest training traces, which stand for the traffic of today. If more than so many wait to be
    learned from, as after a restart or when traffic is faster than the learner, the older ones wait
    no longer: they join those that are replayed."""
    recent_share: float = Field(0.75, ge=0, lt=1)
    """Share of replayed traces that is drawn from the `recent_traces` newest, and not from all: how
    fast a drafter follows its traffic, against how much it forgets of what came before."""
    seed: int = Field(0, ge=0)
    """Seed of the replay's draws."""

    @property
    def url(self) -> str:
        """Return an address from which `from_url` makes equal options in another process."""
        changed = self.model_dump(mode="json", exclude={"path"}, exclude_defaults=True)
        query = urlencode({key: value for key, value in changed.items() if value is not None})
        path = quote(str(self.path.absolute()))
        return f"{_SCHEME}://{path}?{query}" if query else f"{_SCHEME}://{path}"

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read what `url` wrote.

        Raises:
            TraceError: not an absolute spool address, or options that do not exist or fit.
        """
        parts = urlsplit(url)
        if parts.scheme != _SCHEME or parts.netloc or not parts.path.startswith("/"):
            raise TraceError(
                f"{url!r} is not the address of a trace spool; write spool:///FOLDER?max_bytes=N"
            )
        values = {"path": unquote(parts.path), **dict(parse_qsl(parts.query))}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            where, fault = first_fault(error)
            raise TraceError(
                f"the trace spool address {url!r} has an unfit {where!r}: {fault}"
            ) from error
