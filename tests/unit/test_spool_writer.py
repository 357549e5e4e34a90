"""The engine's end of the spool: never blocks, never raises, never over its budget."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aurora_core.errors import TraceError
from aurora_core.spool import SpoolOptions, SpoolSink, open_reader, open_writer
from aurora_core.testing.traces import make_trace
from aurora_core.trace_file import encode_trace, read_trace

DEADLINE_S = 60.0


class HangingFeatures(Mapping[str, Tensor]):
    """Features whose encoding waits until it is let go: a disk that hangs."""

    def __init__(self, features: Mapping[str, Tensor]) -> None:
        self.features, self.let_go, self.reached = features, threading.Event(), threading.Event()

    def __getitem__(self, name: str) -> Tensor:
        self.reached.set()
        assert self.let_go.wait(DEADLINE_S)
        return self.features[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.features)

    def __len__(self) -> int:
        return len(self.features)

    def values(self):
        return self.features.values()


def sink_at(path: Path, **options: object) -> SpoolSink:
    return SpoolSink(SpoolOptions(path=path, **options))


def wait_until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.005)


def files(path: Path) -> list[Path]:
    return sorted((path / "traces").iterdir())


def size_while_written(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # evicted since the folder was listed
        return 0


def trace_bytes() -> int:
    return len(encode_trace(make_trace(0, trace_id="0" * 32)))


def test_written_traces_are_kept_and_readable(tmp_path):
    writer = sink_at(tmp_path).open_writer()
    trace = make_trace(0)
    assert writer.put(trace)
    writer.close()
    assert writer.stats().kept == 1
    assert torch.equal(read_trace(files(tmp_path)[0]).token_ids, trace.token_ids)
    assert not list((tmp_path / "partial").iterdir())


def test_folders_and_files_are_for_their_owner_only(tmp_path):
    writer = sink_at(tmp_path / "spool").open_writer()
    writer.put(make_trace(0))
    writer.close()
    for path in (tmp_path / "spool").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_full_queue_sheds_and_does_not_wait(tmp_path):
    writer = sink_at(tmp_path, queue_traces=2).open_writer()
    trace = make_trace(0)
    hanging = HangingFeatures(trace.features)
    writer.put(dataclasses.replace(trace, features=hanging))
    assert hanging.reached.wait(DEADLINE_S)
    assert [writer.put(make_trace(seed)) for seed in range(4)] == [True, True, False, False]
    assert writer.stats().shed == {"queue": 2}
    hanging.let_go.set()
    writer.close()
    assert writer.stats().kept == 3


def test_queue_is_bounded_in_bytes(tmp_path):
    size = sum(feature.nbytes for feature in make_trace(0).features.values())
    writer = sink_at(tmp_path, queue_bytes=int(2.5 * size)).open_writer()
    trace = make_trace(0)
    hanging = HangingFeatures(trace.features)
    writer.put(dataclasses.replace(trace, features=hanging))
    assert hanging.reached.wait(DEADLINE_S)
    assert [writer.put(make_trace(0)) for _ in range(5)] == [True, True, False, False, False]
    hanging.let_go.set()
    writer.close()


def test_second_trace_with_an_id_is_dropped(tmp_path):
    writer = sink_at(tmp_path).open_writer()
    assert [writer.put(make_trace(0, trace_id="same")) for _ in range(3)] == [True, False, False]
    writer.close()
    assert (writer.stats().kept, writer.stats().shed) == (1, {"duplicate": 2})
    after_restart = sink_at(tmp_path).open_writer()
    assert not after_restart.put(make_trace(0, trace_id="same"))
    after_restart.close()


def test_put_after_close_is_shed_and_close_may_be_repeated(tmp_path):
    writer = sink_at(tmp_path).open_writer()
    writer.close()
    writer.close()
    assert not writer.put(make_trace(0))
    assert writer.stats().shed == {"closed": 1}


def test_budget_holds_and_the_oldest_traces_go_first(tmp_path):
    budget = 10 * trace_bytes()
    writer = sink_at(tmp_path, max_bytes=budget).open_writer()
    ids = [f"{number:032d}" for number in range(60)]
    for trace_id in ids:
        wait_until(lambda trace_id=trace_id: writer.put(make_trace(0, trace_id=trace_id)))
        assert sum(size_while_written(path) for path in files(tmp_path)) <= budget
    writer.close()
    kept = [read_trace(path).trace_id for path in files(tmp_path)]
    assert 5 <= len(kept) <= 10
    assert kept == ids[-len(kept) :]
    stats = writer.stats()
    assert (stats.kept, stats.shed["evicted"]) == (60, 60 - len(kept))
    assert stats.num_bytes <= budget


def test_trace_larger_than_the_budget_is_shed(tmp_path):
    writer = sink_at(tmp_path, max_bytes=trace_bytes() // 2).open_writer()
    writer.put(make_trace(0))
    writer.close()
    assert writer.stats().shed == {"too_large": 1}
    assert not files(tmp_path)


def test_expired_traces_are_deleted_without_a_reader(tmp_path):
    writer = sink_at(tmp_path).open_writer()
    writer.put(make_trace(0))
    writer.put(make_trace(1))
    writer.close()
    old = files(tmp_path)[0]
    old.rename(old.with_name(f"{1:016d}{old.name[16:]}"))
    writer = sink_at(tmp_path, max_age_s=3600).open_writer()
    writer.close()
    assert len(files(tmp_path)) == 1
    assert writer.stats().shed == {"expired": 1}


def test_sampling_rate_records_a_share_and_counts_the_rest(tmp_path):
    writer = sink_at(tmp_path, sampling_rate=0.25, queue_traces=1000).open_writer()
    trace = make_trace(0)
    answers = [
        writer.put(dataclasses.replace(trace, trace_id=str(number))) for number in range(400)
    ]
    writer.close()
    assert 60 < sum(answers) < 140
    assert writer.stats().shed == {"sampling": 400 - sum(answers)}


def failing(monkeypatch, code: int) -> None:
    def refuse(path, *arguments, **options):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_failing_disk_sheds_and_recording_goes_on_when_it_recovers(tmp_path, monkeypatch, code):
    writer = sink_at(tmp_path).open_writer()
    with monkeypatch.context() as patch:
        failing(patch, code)
        assert writer.put(make_trace(0, trace_id="lost"))
        wait_until(lambda: writer.stats().shed)
    assert writer.stats().shed == {"disk": 1}
    assert writer.put(make_trace(0, trace_id="lost"))
    writer.close()
    assert writer.stats().kept == 1
    assert not list((tmp_path / "partial").iterdir())


def test_disk_that_fills_in_the_middle_of_a_file_leaves_nothing(tmp_path, monkeypatch):
    writer = sink_at(tmp_path).open_writer()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "")))
        writer.put(make_trace(0))
        wait_until(lambda: writer.stats().shed)
    writer.close()
    assert not files(tmp_path)
    assert not list((tmp_path / "partial").iterdir())


def test_folder_deleted_under_the_writer_sheds(tmp_path):
    writer = sink_at(tmp_path / "spool").open_writer()
    (tmp_path / "spool").rename(tmp_path / "elsewhere")
    writer.put(make_trace(0))
    wait_until(lambda: writer.stats().shed)
    assert writer.stats().shed == {"disk": 1}
    writer.close()


def test_odd_trace_is_shed_and_the_next_one_is_kept(tmp_path):
    writer = sink_at(tmp_path).open_writer()
    odd = dataclasses.replace(make_trace(0), steps=None)
    writer.put(odd)
    writer.put(make_trace(1))
    writer.close()
    assert (writer.stats().kept, writer.stats().shed) == (1, {"error": 1})


def test_folder_that_cannot_be_written_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    sink = sink_at(tmp_path / "file" / "spool")
    for attempt in (sink.prepare, sink.open_writer, sink.open_reader):
        with pytest.raises(TraceError, match=r"spool' cannot be written: Not a directory; set"):
            attempt()


def test_counts_survive_restarts_and_add_up_over_writers(tmp_path):
    sink = sink_at(tmp_path)
    for seed in range(3):
        writer = sink.open_writer()
        writer.put(make_trace(seed))
        writer.put(make_trace(seed, trace_id=f"{seed}"))
        writer.put(make_trace(seed, trace_id=f"{seed}"))
        writer.close()
    stats = sink_at(tmp_path).stats()
    assert (stats.kept, stats.num_traces, stats.shed) == (6, 6, {"duplicate": 3})
    assert stats.num_bytes == sum(path.stat().st_size for path in files(tmp_path))
    assert len(list((tmp_path / "counts").iterdir())) == 3


def test_damaged_counts_are_ignored(tmp_path):
    sink = sink_at(tmp_path)
    sink.open_writer().close()
    (tmp_path / "counts" / "writer-x.json").write_text("{")
    (tmp_path / "counts" / "writer-y.json").write_text('{"kept": 2, "shed": []}')
    (tmp_path / "counts" / "writer-z.json").write_text('{"kept": 5, "shed": {"disk": 1}}')
    assert sink.stats().shed == {"disk": 1}


def test_stats_of_a_spool_that_does_not_exist_are_zero(tmp_path):
    assert sink_at(tmp_path / "none").stats().num_traces == 0


WRITER = """
    import os, sys
    from aurora_core.spool import open_writer
    from aurora_core.testing.traces import make_trace

    writer = open_writer(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        writer.put(make_trace(int(line), hidden_size=512))
        print("put", flush=True)
    writer.close()
"""


def start_writer(url: str, code: str = WRITER) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_killed_writer_leaves_only_whole_traces(tmp_path):
    sink = sink_at(tmp_path)
    process = start_writer(sink.url)
    process.stdin.write("".join(f"{seed}\n" for seed in range(2000)))
    process.stdin.flush()
    wait_until(lambda: len(files(tmp_path)) >= 5)
    process.kill()
    process.communicate()
    reader = sink.open_reader()
    num_files = len(files(tmp_path))
    assert reader.poll() == num_files >= 5
    assert len(list(reader.iterate())) == num_files
    assert not list((tmp_path / "rejected").iterdir())


def test_file_of_a_writer_killed_before_the_rename_is_never_taken_and_swept_later(tmp_path):
    dies = WRITER.replace(
        "import os, sys",
        "import os, pathlib, sys\n"
        "    def die(self, target):\n"
        "        if self.parent.name == 'partial': os.kill(os.getpid(), 9)",
    ).replace('print("ready"', 'pathlib.Path.replace = die; print("ready"')
    process = start_writer(sink_at(tmp_path).url, dies)
    process.communicate("0\n")
    assert process.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "partial").iterdir()
    assert left.stat().st_size > 0
    reader = open_reader(sink_at(tmp_path).url)
    assert reader.poll() == 0
    assert left.exists()
    os.utime(left, (0, 0))
    open_writer(sink_at(tmp_path).url).close()
    assert not left.exists()
