import errno
import io
import logging
import re

import pytest

from aurora_core.console import RunConsole
from aurora_core.console_text import describe_requests, sparkline, summary_rows
from aurora_core.plugins import Plugins
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    RequestStats,
    SwapReceipt,
    Verdict,
)

DRAFT = DraftVersion(
    version=4, path="v", parent=3, speculator="fake", target_fingerprint="f",
    global_step=1200, num_tokens_trained=34000, created=0.0, checksum="c",
)  # fmt: skip


def stats(sequence, *, version=NO_DRAFTER, accepted=()):
    return RequestStats(
        sequence=sequence, request_id=str(sequence), finished=0.0, num_prompt_tokens=5,
        num_output_tokens=21, num_steps=10, num_speculative_steps=10, num_drafted=30,
        accepted_per_position=tuple(accepted), min_draft_version=version,
        max_draft_version=version, ttft_s=0.1, decode_s=1.0, finish_reason="stop",
    )  # fmt: skip


def drive(console):
    """Let a console see one of everything, through the hooks."""
    plugins = Plugins()
    plugins.register(console, "console")
    console.banner([("target", "tiny")], live_version=NO_DRAFTER, newest=0, wanted_requests=9)
    plugins.notify("aurora_run_started", config=None, run_dir="run")
    plugins.notify("aurora_requests_finished", requests=[stats(1), stats(2)])
    plugins.notify("aurora_learner_progress", step=12, metrics={"train/loss": 2.5})
    plugins.notify("aurora_draft_published", draft=DRAFT)
    verdict = Verdict(action="promote", reason="better by [0.2] on 32 traces")
    plugins.notify("aurora_swap_decided", draft=DRAFT, verdict=verdict, evidence=None)
    receipt = SwapReceipt(version=4, checksum="c", load_ms=9.0, stall_ms=3.25)
    plugins.notify("aurora_draft_swapped", draft=DRAFT, previous=None, receipt=receipt)
    plugins.notify(
        "aurora_requests_finished", requests=[stats(3, version=4, accepted=(8, 2)), stats(4)]
    )
    assert not plugins.failures


def test_plain_console_writes_one_line_per_event_and_no_control_codes():
    stream = io.StringIO()
    with RunConsole(stream) as console:
        drive(console)
    text = stream.getvalue()
    assert not re.search(r"[^\n -~]", text)
    lines = [re.sub(r"^\[ *[\d.]+ s\] ", "", line) for line in text.splitlines()]
    assert lines == [
        "aurora run",
        "  target  tiny",
        "2 of 9 requests, acceptance length 1.00, 20.0 tokens/s, live: no drafter",
        "learner: learning, step 12, loss 2.500, live is 0 versions behind",
        "published version 4 (step 1,200, 34,000 tokens trained)",
        "verdict: promote version 4: better by [0.2] on 32 traces",
        "version 4 is live after no drafter; decoding stood still for 3.2 ms",
    ]


def test_engine_that_changed_by_itself_did_not_stand_still():
    stream = io.StringIO()
    receipt = SwapReceipt(version=NO_DRAFTER, checksum="", load_ms=0.0, stall_ms=0.0)
    with RunConsole(stream) as console:
        console.aurora_draft_swapped(draft=None, previous=DRAFT, receipt=receipt)
    assert stream.getvalue().endswith("no drafter is live after version 4\n")


def test_plain_progress_is_limited_in_rate_and_events_are_not():
    stream = io.StringIO()
    with RunConsole(stream) as console:
        for number in range(500):
            console.aurora_requests_finished([stats(number)])
            console.aurora_learner_progress(number, {"train/loss": 1.0})
            console.progress(f"{number} of 500")
        for _ in range(3):
            console.aurora_draft_published(DRAFT)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3 + 3


def test_live_console_shows_acceptance_its_trend_learner_and_the_last_verdict():
    stream = io.StringIO()
    with RunConsole(stream, live=True) as console:
        drive(console)
        console._console.width = 100
        with console._console.capture() as capture:
            console._console.print(console)
    panel = capture.get()
    # The answer without speculation counts as served, not for the acceptance of what is live.
    for shown in (
        "4 of 9 requests, 20.0 tokens/s (without speculation 20.0)",
        "1.33",
        "learning, step 12, loss 2.500, live is 0 versions behind",
        "version 4, swapped 1 time",
        "promote version 4: better by [0.2] on 32 traces",
    ):
        assert shown in panel
    assert "better by [0.2]" in stream.getvalue()


def test_log_lines_are_written_above_the_live_panel_and_go_back_to_stderr_afterwards(monkeypatch):
    import sys

    terminal = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(logging.root, "handlers", [handler])
    with RunConsole(io.StringIO(), live=True) as console:
        console._console._force_terminal = True
        console.aurora_run_started(None, "run")
        assert handler.stream is not terminal
    assert handler.stream is terminal


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "full")])
def test_reader_that_went_away_or_a_full_disk_does_not_end_the_run(error):
    class Closed(io.StringIO):
        def write(self, text):
            raise error

    with RunConsole(Closed()) as console:
        drive(console)


@pytest.mark.parametrize(("encoding", "drawn"), [("utf-8", "\u2581\u2585\u2588"), ("ascii", ".+@")])
def test_sparkline_spans_its_range_in_what_the_terminal_can_show(encoding, drawn):
    assert sparkline([1.0, 1.5, 2.0], encoding) == drawn


def test_sparkline_of_equal_values_is_flat_and_of_none_is_empty():
    assert sparkline([2.0, 2.0]) == "\u2581\u2581" and sparkline([]) == ""


def test_requests_without_a_limit_have_none_in_their_line():
    assert describe_requests(1, None, live_otps=3.0, plain_otps=0.0) == "1 request, 3.0 tokens/s"


def test_summary_says_what_was_not_measured():
    report = {
        "ended": "interrupted",
        "requests": {"total": 3, "finished": 1, "failed": 1, "unfinished": 1},
        "acceptance_length": {
            "first": None,
            "last": None,
            "last_measured_on": None,
            "per_position": [],
        },
        "otps": {"none": None, "speculative": None, "speedup": None, "batch_size": None},
        "lossless": {"checked": 0, "mismatches": 0, "near_ties": 0},
        "swaps": {
            "count": 0,
            "failed": 0,
            "by_engine": 0,
            "stall_ms_p99": None,
            "longest_gap_ms_p99": None,
        },
        "records": {"dropped": 0},
        "learner": {"steps": 0, "tokens_trained": 0, "restarts": 1},
        "traces": {"kept": 0, "shed": 0},
        "memory": {"engine_mib": 1.0, "learner_mib": 0.0},
        "wall_s": 3.0,
        "run_dir": "run",
    }
    rows = dict(summary_rows(report))
    assert rows["speed-up"] == "not measured" and rows["lossless"] == "not checked"
    assert rows["acceptance length"] == "not measured"
    assert rows["swaps"] == "none" and "1 restart" in rows["learner"]
    assert rows["requests"] == "1 finished, 1 failed, 1 unfinished"
    assert not {"longest pauses", "by draft position", "lost records"} & rows.keys()
