"""Results on disk."""

from __future__ import annotations

import pytest

from aurora_core.errors import ConfigError
from aurora_core.experiments.results import (
    Event,
    RequestFigures,
    read_events,
    read_result,
    write_result,
)
from aurora_core.traffic.completion import SpeculationStats
from aurora_core.traffic.results import ReplayResult
from tests.unit.experiments.hand_made import figures, result


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "seed-0" / "gate.json"
    one = result(
        [figures(0), figures(1, error="gone")],
        references=[figures(0)],
        events=[Event(kind="promote", version=2, num_requests=1)],
    )
    write_result(path, one)
    assert read_result(path) == one
    assert read_result(tmp_path / "other.json") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is no result of this experiment; delete it"), ("old", "has schema 0, expected 1")],
)
def test_file_of_something_else_is_refused(tmp_path, text, message):
    path = tmp_path / "gate.json"
    if text == "old":
        write_result(path, result([figures(0)]))
        text = path.read_text().replace('"schema":1', '"schema":0')
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_result(path)


def test_figures_of_a_request_count_accepted_tokens_over_all_positions():
    answered = ReplayResult(
        index=9,
        domain="sql",
        ok=True,
        num_output_tokens=7,
        otps=3.0,
        token_ids=(1, 2),
        aurora=SpeculationStats(
            num_steps=4,
            num_drafted=12,
            accepted_per_position=(2, 1),
            acceptance_length=1.75,
            min_draft_version=1,
            max_draft_version=2,
        ),
    )
    found = RequestFigures.of(answered, index=4, domain="sql", ended_s=1.5)
    assert (found.index, found.num_steps, found.num_accepted, found.otps) == (4, 4, 3, 3.0)
    assert (found.min_draft_version, found.max_draft_version) == (1, 2)
    failed = ReplayResult(index=0, domain="sql", ok=False, error="timeout: 5 s")
    assert RequestFigures.of(failed, index=0, domain="sql", ended_s=0.0).error == "timeout: 5 s"


def test_swap_is_named_after_the_verdict_that_led_to_it_and_placed_by_its_time():
    lines = [
        {"kind": "swap", "time": 90.0, "version": 1},
        {"kind": "verdict", "time": 101.0, "version": 2, "verdict": {"action": "promote"}},
        {"kind": "swap", "time": 102.0, "version": 2},
        {"kind": "drift", "time": 103.0, "version": 2},
        {"kind": "verdict", "time": 104.0, "version": 2, "verdict": {"action": "roll_back"}},
        {"kind": "swap", "time": 104.5, "version": 1},
        {"kind": "swap_failed", "time": 105.0, "version": 1},
    ]
    assert read_events(lines, [1.0, 2.5, 4.0, 9.0], started=100.0) == (
        Event(kind="promote", version=2, num_requests=1),
        Event(kind="drift", version=2, num_requests=2),
        Event(kind="roll_back", version=1, num_requests=3),
    )
