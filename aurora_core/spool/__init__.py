"""The built-in trace sink: files in a folder, for any number of writers and one reader.

    SPOOL/traces/    <arrival in microseconds>-<digest of the trace id>.safetensors, complete
    SPOOL/partial/   being written; swept when their writer is long gone
    SPOOL/rejected/  unreadable files, the newest few, for inspection
    SPOOL/counts/    one small file per writer and reader: what was kept and what was shed

A trace appears by rename and only ever disappears, so killed processes and shared filesystems need
no locks: whoever finds a file gone forgets it. Writers and readers both keep the byte budget and
the age limit by removing the oldest traces, so the spool stays bounded while either is down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aurora_core.spool.options import SpoolOptions
from aurora_core.spool.sink import SpoolSink

if TYPE_CHECKING:
    from aurora_core.interfaces import TraceReader, TraceWriter

__all__ = ["SpoolOptions", "SpoolSink", "open_reader", "open_writer"]


def open_writer(url: str) -> TraceWriter:
    """Return the engine's end of the spool at `SpoolSink.url`.

    Raises:
        TraceError: another kind of address, or a folder that cannot be written.
    """
    return SpoolSink(SpoolOptions.from_url(url)).open_writer()


def open_reader(url: str) -> TraceReader:
    """Return the learner's end of the spool at `SpoolSink.url`.

    Raises:
        TraceError: another kind of address, or a folder that cannot be written.
    """
    return SpoolSink(SpoolOptions.from_url(url)).open_reader()
