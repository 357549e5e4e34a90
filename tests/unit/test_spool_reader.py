"""The learner's end of the spool: what it gives, in which order, and what it survives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_core.errors import TraceError
from aurora_core.records import NO_DRAFTER, Trace
from aurora_core.spool import SpoolOptions, SpoolSink, open_reader, open_writer
from aurora_core.spool.directory import MAX_REJECTED, SpoolDirectory, trace_digest
from aurora_core.spool.reader import SpoolReader, is_held_out
from aurora_core.testing.traces import make_trace
from aurora_core.trace_file import encode_trace


def small_trace(trace_id: str, **options: object) -> Trace:
    return make_trace(
        sum(trace_id.encode()),
        trace_id=trace_id,
        hidden_size=2,
        num_steps=2,
        request_key=options.pop("request_key", trace_id),
        **options,
    )


def add(path: Path, *trace_ids: str, **options: object) -> None:
    """Put traces into the spool without a writer."""
    directory = SpoolDirectory(path)
    directory.prepare()
    for trace_id in trace_ids:
        directory.add(encode_trace(small_trace(trace_id, **options)), trace_digest(trace_id))


def reader_at(path: Path, **options: object) -> SpoolReader:
    return SpoolReader(SpoolOptions(path=path, **({"holdout_fraction": 0.0} | options)))


def ids(traces: list[Trace]) -> list[str]:
    return [trace.trace_id for trace in traces]


def names(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def test_old_traces_do_not_stand_in_the_way_of_new_ones(tmp_path):
    """After a restart, or behind traffic, what is learned from first is the traffic of today."""
    add(tmp_path, *names(20))
    reader = reader_at(tmp_path, recent_traces=4)
    assert reader.poll() == reader.num_training == 20
    assert ids(reader.sample(4, fresh=4)) == names(20)[16:]
    add(tmp_path, "new")
    reader.poll()
    assert ids(reader.sample(3, fresh=2))[0] == "new"


def test_replays_are_above_all_of_the_newest_traces_and_still_of_all(tmp_path):
    add(tmp_path, *names(100))
    reader = reader_at(tmp_path, recent_traces=10, recent_share=0.75)
    reader.poll()
    reader.sample(10, fresh=10)
    drawn = [ids(reader.sample(1, fresh=0))[0] for _ in range(400)]
    recent = sum(trace_id in names(100)[90:] for trace_id in drawn)
    # 0.75 + 0.25 * 10 / 100 of 400 draws: 310, and 9 are one standard deviation.
    assert 265 < recent < 355
    assert len(set(drawn)) > 40


def test_any_trace_can_fill_a_batch_that_is_larger_than_the_newest(tmp_path):
    add(tmp_path, *names(30))
    reader = reader_at(tmp_path, recent_traces=2, recent_share=0.99)
    reader.poll()
    assert sorted(ids(reader.sample(30, fresh=0))) == sorted(names(30)[:28])


def test_poll_counts_each_trace_once(tmp_path):
    add(tmp_path, "a", "b")
    reader = reader_at(tmp_path)
    assert (reader.poll(), reader.poll()) == (2, 0)
    add(tmp_path, "c")
    assert (reader.poll(), reader.num_training) == (1, 3)


def test_fresh_traces_come_in_order_of_arrival_and_never_more_than_asked(tmp_path):
    add(tmp_path, *names(5))
    reader = reader_at(tmp_path)
    reader.poll()
    assert ids(reader.sample(4, fresh=2)) == ["t0", "t1"]
    second = ids(reader.sample(4, fresh=2))
    assert second[:2] == ["t2", "t3"]
    assert sorted(second[2:]) == ["t0", "t1"]
    third = ids(reader.sample(3, fresh=2))
    assert third[0] == "t4"
    assert set(third[1:]) < {"t0", "t1", "t2", "t3"}


def test_replay_alone_needs_traces_that_were_seen(tmp_path):
    add(tmp_path, "a")
    reader = reader_at(tmp_path)
    reader.poll()
    assert reader.sample(3, fresh=0) == []
    assert ids(reader.sample(3, fresh=3)) == ["a"]
    assert ids(reader.sample(3, fresh=0)) == ["a"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 4), st.just(0)),
            st.tuples(st.just("sample"), st.integers(0, 5), st.integers(0, 5)),
        ),
        max_size=10,
    ),
    st.integers(0, 3),
)
def test_every_mix_of_arrivals_and_samples_keeps_the_promises(operations, seed):
    with tempfile.TemporaryDirectory() as folder:
        path, num_added = Path(folder), 0
        reader = reader_at(path, holdout_fraction=0.3, seed=seed)
        given_before: set[str] = set()
        for operation, count, fresh in operations:
            if operation == "add":
                add(path, *(f"t{num_added + number}" for number in range(count)))
                num_added += count
                assert reader.poll() == count
                continue
            sample = ids(reader.sample(count, fresh=fresh))
            new = [trace_id for trace_id in sample if trace_id not in given_before]
            assert len(set(sample)) == len(sample) <= count
            assert len(new) <= fresh
            assert not any(is_held_out(trace_id, 0.3) for trace_id in sample)
            given_before |= set(new)
        training = {f"t{n}" for n in range(num_added) if not is_held_out(f"t{n}", 0.3)}
        assert reader.num_training == len(training)
        rest = ids(reader.sample(1000, fresh=1000))
        assert set(rest) == training


def test_holdout_is_split_by_request_key_and_disjoint_from_training(tmp_path):
    for number in range(40):
        add(tmp_path, f"t{number}", request_key=f"prompt {number % 20}")
    reader = reader_at(tmp_path, holdout_fraction=0.3)
    reader.poll()
    held_out = reader.holdout(100)
    training = reader.sample(100, fresh=100)
    assert 0 < len(held_out) < 40
    assert len(held_out) + len(training) == 40
    keys = {trace.request_key for trace in held_out}
    assert keys.isdisjoint({trace.request_key for trace in training})
    newest = ids(reader.holdout(3))
    assert newest == ids(held_out)[-3:]


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 0.99), st.floats(0, 0.99), st.text(max_size=8))
def test_larger_fractions_hold_out_supersets(one, other, key):
    assert is_held_out(key, min(one, other)) <= is_held_out(key, max(one, other))


def test_fraction_is_met_over_many_keys():
    share = sum(is_held_out(str(number), 0.1) for number in range(5000)) / 5000
    assert 0.08 < share < 0.12


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "inconsistent"])
def test_damaged_file_is_set_aside_and_counted_and_the_rest_is_read(tmp_path, damage):
    add(tmp_path, "a", "b", "c")
    path = sorted((tmp_path / "traces").iterdir())[1]
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[:-5],
            "empty": b"",
            "noise": b"\xff" * 500,
            # The tensors come last: here one says something else, in a sound file.
            "inconsistent": content[:-40] + b"\x07" * 40,
        }[damage]
    )
    reader = reader_at(tmp_path)
    reader.poll()
    assert ids(reader.sample(3, fresh=3)) == ["a", "c"]
    assert [left.name for left in (tmp_path / "rejected").iterdir()] == [path.name]
    reader.poll()
    assert (reader.num_training, reader.poll()) == (2, 0)
    assert SpoolSink(SpoolOptions(path=tmp_path)).stats().shed == {"rejected": 1}


def test_what_is_no_file_under_the_name_of_a_trace_harms_nobody(tmp_path):
    """A pipe would let whoever opens it wait for ever."""
    add(tmp_path, "a", "b")
    traces = tmp_path / "traces"
    now = time.time_ns() // 1000
    pipe, folder, circle, nowhere = (
        traces / f"{now + number:016d}-{number:016x}.safetensors" for number in range(4)
    )
    os.mkfifo(pipe)
    folder.mkdir()
    (folder / "kept").touch()
    circle.symlink_to(circle)
    nowhere.symlink_to("nowhere")
    reader = reader_at(tmp_path)
    assert reader.poll() == 2
    assert ids(reader.sample(2, fresh=2)) == ["a", "b"]
    assert ids(list(reader.iterate())) == ["a", "b"]
    assert (tmp_path / "rejected" / folder.name / "kept").exists()
    assert SpoolSink(SpoolOptions(path=tmp_path)).stats().shed == {"rejected": 1}
    reader_at(tmp_path, max_bytes=1).poll()  # full: what can be deleted is
    assert pipe.exists() and not [path for path in traces.iterdir() if path.is_file()]


def test_rejected_files_do_not_pile_up(tmp_path):
    add(tmp_path, *names(MAX_REJECTED + 8))
    for path in (tmp_path / "traces").iterdir():
        path.write_bytes(b"damaged")
    reader = reader_at(tmp_path)
    assert reader.poll() == 0
    reader.poll()
    assert len(list((tmp_path / "rejected").iterdir())) == MAX_REJECTED


def test_vanished_files_are_forgotten(tmp_path):
    add(tmp_path, *names(4))
    reader = reader_at(tmp_path, cache_bytes=0)
    reader.poll()
    reader.sample(2, fresh=2)
    for path in sorted((tmp_path / "traces").iterdir())[1:3]:
        path.unlink()
    assert ids(reader.sample(4, fresh=4)) == ["t3", "t0"]
    reader.poll()
    assert reader.num_training == 2


def test_second_file_with_a_trace_id_is_dropped(tmp_path):
    add(tmp_path, "a", "b", "a")
    reader = reader_at(tmp_path)
    assert reader.poll() == 2
    assert len(list((tmp_path / "traces").iterdir())) == 2
    assert ids(reader.sample(5, fresh=5)) == ["a", "b"]


def test_reader_keeps_the_byte_budget_and_evicts_the_oldest(tmp_path):
    size = len(encode_trace(small_trace("t0")))
    add(tmp_path, *names(8))
    reader = reader_at(tmp_path, max_bytes=int(5.5 * size))
    reader.poll()
    left = ids(reader.sample(10, fresh=10))
    assert left == [f"t{number}" for number in range(8 - len(left), 8)]
    assert sum(path.stat().st_size for path in (tmp_path / "traces").iterdir()) <= 5.5 * size


def test_reader_deletes_expired_traces(tmp_path):
    add(tmp_path, "a", "b")
    old = sorted((tmp_path / "traces").iterdir())[0]
    old.rename(old.with_name(f"{int(time.time() - 100) * 10**6:016d}{old.name[16:]}"))
    reader = reader_at(tmp_path, max_age_s=50)
    reader.poll()
    assert ids(reader.sample(5, fresh=5)) == ["b"]


def test_stale_traces_are_not_trained_on(tmp_path):
    add(tmp_path, "old", version=[1, 3])
    add(tmp_path, "plain", version=NO_DRAFTER)
    add(tmp_path, "recent", version=[2, 3])
    reader = reader_at(tmp_path, max_staleness=2)
    reader.poll()
    assert reader.num_training == 3
    add(tmp_path, "new", version=4)
    reader.poll()
    assert ids(reader.sample(5, fresh=5)) == ["plain", "recent", "new"]
    assert reader.poll() == 0
    assert SpoolSink(SpoolOptions(path=tmp_path)).stats().shed == {"stale": 1}


def test_resumed_reader_continues_as_if_nothing_had_happened(tmp_path):
    add(tmp_path, *names(12))
    reader = reader_at(tmp_path, seed=5, holdout_fraction=0.2)
    reader.poll()
    for _ in range(3):
        reader.sample(3, fresh=1)
    state = json.loads(json.dumps(reader.state_dict()))
    resumed = reader_at(tmp_path, seed=99, holdout_fraction=0.2)
    resumed.load_state_dict(state)
    resumed.poll()
    add(tmp_path, "late")
    assert (reader.poll(), resumed.poll()) == (1, 1)
    for _ in range(10):
        assert ids(reader.sample(4, fresh=1)) == ids(resumed.sample(4, fresh=1))
    assert ids(reader.holdout(9)) == ids(resumed.holdout(9))


def test_resume_forgets_traces_that_are_gone(tmp_path):
    add(tmp_path, *names(4))
    reader = reader_at(tmp_path)
    reader.poll()
    reader.sample(2, fresh=2)
    state = reader.state_dict()
    for path in sorted((tmp_path / "traces").iterdir())[::2]:
        path.unlink()
    resumed = reader_at(tmp_path)
    resumed.load_state_dict(state)
    assert resumed.poll() == 0
    assert ids(resumed.sample(4, fresh=2)) == ["t3", "t1"]


def test_larger_holdout_after_a_resume_is_never_trained_on(tmp_path):
    add(tmp_path, *names(20))
    reader = reader_at(tmp_path)
    reader.poll()
    reader.sample(10, fresh=10)
    resumed = reader_at(tmp_path, holdout_fraction=0.5)
    resumed.load_state_dict(reader.state_dict())
    resumed.poll()
    held_out = {trace_id for trace_id in names(20) if is_held_out(trace_id, 0.5)}
    assert set(ids(resumed.sample(20, fresh=20))) == set(names(20)) - held_out
    assert set(ids(resumed.holdout(20))) == held_out


@pytest.mark.parametrize("state", [{}, {"format": 2}, {"format": 1, "seen": 3, "fresh": []}])
def test_foreign_state_is_refused_in_one_sentence(tmp_path, state):
    reader = reader_at(tmp_path)
    with pytest.raises(TraceError, match="saved state of the trace reader cannot be used"):
        reader.load_state_dict(state)


def test_seed_decides_the_replay(tmp_path):
    add(tmp_path, *names(30))

    def draws(seed: int) -> list[list[str]]:
        reader = reader_at(tmp_path, seed=seed)
        reader.poll()
        reader.sample(30, fresh=30)
        return [ids(reader.sample(4, fresh=0)) for _ in range(4)]

    assert draws(1) == draws(1) != draws(2)


def test_decoded_traces_in_memory_stay_within_their_budget(tmp_path):
    add(tmp_path, *names(50))
    reader = reader_at(tmp_path, cache_bytes=2000)
    reader.poll()
    for _ in range(30):
        assert reader.sample(8, fresh=4)
        assert 0 < reader.cached_bytes <= 2000


def test_iterate_yields_everything_oldest_first_and_changes_nothing(tmp_path):
    add(tmp_path, *names(6))
    reader = reader_at(tmp_path, holdout_fraction=0.5)
    assert ids(list(reader.iterate())) == names(6)
    assert reader.num_training == 0


def test_folder_that_disappears_is_reported_in_one_sentence(tmp_path):
    reader = reader_at(tmp_path / "spool")
    (tmp_path / "spool").rename(tmp_path / "elsewhere")
    with pytest.raises(TraceError, match=r"spool' cannot be read: No such file"):
        reader.poll()


def test_a_check_says_what_prepare_would_say_and_creates_nothing(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    spools = [tmp_path / "file", tmp_path / "file" / "spool", tmp_path / "circle" / "spool"]
    half = tmp_path / "half"
    half.mkdir()
    (half / "traces").touch()
    before = sorted(tmp_path.rglob("*"))
    for path in (*spools, half, tmp_path / ("x" * 300)):
        sink = SpoolSink(SpoolOptions(path=path))
        with pytest.raises(TraceError, match=r"cannot be written: .*; set `trace_sink.path` to"):
            sink.check()
        assert sorted(tmp_path.rglob("*")) == before
        with pytest.raises(TraceError, match=r"cannot be written: .*; set `trace_sink.path` to"):
            sink.prepare()
    SpoolSink(SpoolOptions(path=tmp_path / "new" / "spool")).check()
    assert not (tmp_path / "new").exists()


def test_several_writers_and_a_reader_lose_and_duplicate_nothing(tmp_path):
    url = SpoolSink(SpoolOptions(path=tmp_path, queue_traces=1000, holdout_fraction=0.0)).url
    reader = open_reader(url)
    given_ids: list[str] = []

    def write(writer_number: int) -> None:
        writer = open_writer(url)
        for number in range(25):
            assert writer.put(small_trace(f"{writer_number}-{number}"))
        writer.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        reader.poll()
        given_ids += ids(reader.sample(4, fresh=4))[:4]
    reader.poll()
    fresh = reader.sample(75, fresh=75)
    assert reader.num_training == 75
    assert len({*given_ids, *ids(fresh)}) == 75


@settings(max_examples=50)
@given(
    st.builds(
        SpoolOptions,
        path=st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1).map(
            lambda name: Path("/a") / f"x{name}"
        ),
        max_bytes=st.integers(1, 10**12),
        max_age_s=st.floats(1, 1e6),
        holdout_fraction=st.floats(0, 0.9),
        max_staleness=st.none() | st.integers(0, 9),
        seed=st.integers(0, 99),
    )
)
def test_options_travel_in_the_address(options):
    assert SpoolOptions.from_url(options.url) == options


def test_sizes_are_written_with_units():
    assert SpoolOptions(path="/a", max_bytes="2GiB").max_bytes == 2 << 30


@pytest.mark.parametrize(
    "url", ["file:///tmp/x", "spool://host/x", "spool:relative", "/tmp/x", "spool://"]
)
def test_other_addresses_are_refused(url):
    with pytest.raises(TraceError, match="is not the address of a trace spool; write spool:///"):
        open_writer(url)


def test_unknown_or_unfit_option_in_the_address_is_named():
    with pytest.raises(TraceError, match="has an unfit 'max_byte': Extra inputs"):
        open_reader("spool:///tmp/x?max_byte=3")
    with pytest.raises(TraceError, match="has an unfit 'max_bytes'"):
        open_reader("spool:///tmp/x?max_bytes=lots")


def test_sink_side_imports_no_torch(tmp_path):
    add(tmp_path, "a")
    code = (
        "import sys; from aurora_core.spool import SpoolSink, SpoolOptions;"
        f"sink = SpoolSink(SpoolOptions(path={str(tmp_path)!r})); sink.prepare();"
        "print(sink.stats().num_traces, 'torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.stdout.split() == ["1", "False"], output.stderr
