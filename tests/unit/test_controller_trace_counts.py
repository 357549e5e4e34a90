"""Traces of one run, out of a sink's counts over all runs and both ends."""

from aurora_core.controller.trace_counts import TraceCounts
from aurora_core.records import SinkStats
from aurora_core.spool.directory import Counts, SpoolDirectory
from aurora_core.spool.options import SpoolOptions
from aurora_core.spool.sink import SpoolSink


def save(path, role, kept=0, **shed):
    counts = Counts(kept=kept)
    counts.shed.update(shed)
    SpoolDirectory(path).write_counts(role, counts)


def test_what_the_reader_removed_counts_and_earlier_runs_do_not(tmp_path):
    sink = SpoolSink(SpoolOptions(path=tmp_path))
    sink.prepare()
    save(tmp_path, "writer", kept=50, queue=5)
    save(tmp_path, "reader", stale=7)
    counts = TraceCounts(sink)
    assert counts.since_start(kept=0, shed=0) == (0, 0)
    save(tmp_path, "writer", kept=20, full=1)
    save(tmp_path, "reader", stale=2, rejected=1)
    assert counts.since_start(kept=20, shed=1) == (20, 4)


def test_engine_that_knows_more_is_believed(tmp_path):
    sink = SpoolSink(SpoolOptions(path=tmp_path))
    sink.prepare()
    assert TraceCounts(sink).since_start(kept=9, shed=3) == (9, 3)


def test_sink_that_cannot_tell_is_no_obstacle():
    class Silent:
        def stats(self) -> SinkStats:
            raise NotImplementedError

    assert TraceCounts(Silent()).since_start(kept=9, shed=3) == (9, 3)
