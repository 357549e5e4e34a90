"""The spool as a trace sink: opens its two ends. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aurora_core.errors import TraceError
from aurora_core.interfaces import TraceSink
from aurora_core.records import SinkStats
from aurora_core.spool.directory import SpoolDirectory
from aurora_core.spool.options import SpoolOptions

if TYPE_CHECKING:
    from aurora_core.spool.reader import SpoolReader
    from aurora_core.spool.writer import SpoolWriter


class SpoolSink(TraceSink):
    """Traces as files in one folder: several writers, one reader, shared filesystems included."""

    Config = SpoolOptions

    def __init__(self, options: SpoolOptions) -> None:
        super().__init__(options)
        self.options: SpoolOptions = options
        self._directory = SpoolDirectory(options.path)

    @property
    def url(self) -> str:
        """Return `spool:///folder?option=value`, with the options that differ from defaults."""
        return self.options.url

    def check(self) -> None:
        """Create nothing. Raises TraceError if the folder could not be made or written."""
        self._directory.check()

    def prepare(self) -> None:
        """Create the folder. Raises TraceError if it cannot be written."""
        self._directory.prepare()

    def open_writer(self) -> SpoolWriter:
        """Return a writer with its thread running. Raises TraceError like `prepare`."""
        from aurora_core.spool.writer import SpoolWriter

        return SpoolWriter(self.options)

    def open_reader(self) -> SpoolReader:
        """Return a reader that has seen nothing yet. Raises TraceError like `prepare`."""
        from aurora_core.spool.reader import SpoolReader

        return SpoolReader(self.options)

    def stats(self) -> SinkStats:
        """Return what lies in the folder and what all writers and readers saved last.

        Counts are saved about once a second; those of a killed process may lack its last second.
        """
        try:
            entries = self._directory.entries()
        except TraceError:  # not created yet
            return SinkStats(num_traces=0, num_bytes=0, kept=0)
        counts = self._directory.total_counts()
        return SinkStats(
            num_traces=len(entries),
            num_bytes=self._directory.num_bytes(),
            kept=counts.kept,
            shed=dict(counts.shed),
        )
