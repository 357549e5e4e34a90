"""What live traffic says: by version, since the swap, on trial, without speculation."""

from __future__ import annotations

import dataclasses
import json

import pytest

from aurora_core.controller.earlier_run import read_last_swap
from aurora_core.controller.evidence import LiveTraffic, read_recent_requests
from aurora_core.controller.serving_stats import bucket, serving_stats
from aurora_core.records import NO_DRAFTER, DraftVersion, RequestStats, SwapReceipt
from aurora_core.wire import to_json


def request(version, *, accepted=10, steps=10, tokens=21, seconds=1.0, batch=1.0, **labels):
    return RequestStats(
        sequence=0, request_id="r", finished=0.0, num_prompt_tokens=5, num_output_tokens=tokens,
        num_steps=steps, num_speculative_steps=0 if version == NO_DRAFTER else steps,
        num_drafted=0, accepted_per_position=(accepted,), min_draft_version=version,
        max_draft_version=version, ttft_s=0.1, decode_s=seconds,
        finish_reason=labels.pop("finish_reason", "stop"), batch_size=batch, **labels,
    )  # fmt: skip


def draft(version):
    return DraftVersion(
        version=version, path="p", parent=None, speculator="s", target_fingerprint="f",
        global_step=1, num_tokens_trained=1, created=0.0, checksum="",
    )  # fmt: skip


def receipt(version):
    return SwapReceipt(version=version, checksum="", load_ms=200.0, stall_ms=10.0)


def test_figures_of_a_version_are_cut_by_batch_size_and_by_label():
    requests = [
        request(1, accepted=10, batch=1.0, route="sql"),
        request(1, accepted=20, batch=2.5, route="sql", seconds=2.0),
        request(1, accepted=0, batch=3.9, route="math", tenant="a"),
    ]
    found = serving_stats(1, requests)
    assert found.num_requests == 3 and found.acceptance_length == pytest.approx(2.0)
    assert found.acceptance_per_position == (1.0,)
    assert [one.batch_size for one in found.by_batch_size] == [1, 4]
    assert found.by_batch_size[1].otps.mean == pytest.approx(15.0)
    assert found.by_batch_size[1].step_s == pytest.approx(0.15)
    assert [(one.tenant, one.route) for one in found.by_label] == [("", "sql"), ("a", "math")]
    assert found.by_label[0].length.mean == pytest.approx(2.5)
    assert found.by_label[0].length.variance == pytest.approx(0.5)


def test_batch_sizes_fall_into_powers_of_two():
    assert [bucket(size) for size in (0.5, 1.0, 1.2, 2.0, 5.0, 8.0, 8.1)] == [1, 1, 2, 2, 8, 8, 16]


def test_evidence_counts_since_the_swap():
    traffic = LiveTraffic(started=0.0)
    traffic.observe([request(1)] * 3)
    traffic.swapped(100.0, receipt(2))
    traffic.observe([request(2), request(2, finish_reason="abort"), request(1)])
    found = traffic.evidence(draft(3), live=draft(2), previous=draft(1), now=130.0)
    assert (found.num_requests_since_swap, found.num_tokens_since_swap) == (3, 63)
    assert found.seconds_since_swap == 30.0
    assert (found.since_swap.version, found.since_swap.num_requests) == (2, 1)
    assert [(one.version, one.num_requests) for one in found.serving] == [(1, 4), (2, 1)]
    cost = found.swap_cost
    assert (cost.num_swaps, cost.stall_s, cost.load_s) == (1, 0.01, 0.2)


def test_requests_before_the_first_drafter_are_no_measure_of_no_speculation():
    traffic = LiveTraffic(started=0.0)
    traffic.observe([request(NO_DRAFTER, seconds=0.1)] * 5)
    assert traffic.without_speculation() is None
    traffic.swapped(1.0, receipt(1))
    traffic.observe([request(NO_DRAFTER, seconds=2.0), request(1)])
    assert traffic.without_speculation().num_requests == 1
    assert traffic.without_speculation().otps == pytest.approx(10.0)
    started_live = LiveTraffic(started=0.0)
    started_live.serve_first(draft(1))
    started_live.observe([request(NO_DRAFTER)])
    assert started_live.without_speculation().num_requests == 1


def test_trial_compares_what_finished_in_the_same_time():
    traffic = LiveTraffic(started=0.0)
    traffic.serve_first(draft(1))
    traffic.observe([request(1)] * 4)
    traffic.begin_trial(2, 0.1, 50.0)
    traffic.observe([request(1), request(2), request(NO_DRAFTER)])
    found = traffic.evidence(draft(2), live=draft(1), previous=None, now=60.0).trial
    assert (found.version, found.share, found.seconds) == (2, 0.1, 10.0)
    assert (found.challenger.num_requests, found.live.num_requests) == (1, 1)
    against_none = traffic.evidence(draft(2), live=None, previous=None, now=60.0).trial
    assert against_none.live.version == NO_DRAFTER and against_none.live.num_requests == 1
    traffic.end_trial()
    assert traffic.evidence(draft(2), live=draft(1), previous=None, now=60.0).trial is None


def test_drift_is_scored_by_tenant_on_requests_of_the_live_version_alone():
    traffic = LiveTraffic(started=0.0)
    traffic.serve_first(draft(1))
    for index in range(60):
        falling = 10 if index < 30 else 2
        traffic.observe(
            [
                request(1, accepted=10 + index % 2, tenant="steady"),
                request(1, accepted=falling + index % 2, tenant="falling"),
                request(2, accepted=0, tenant="steady"),
                request(NO_DRAFTER, accepted=0, tenant="steady"),
            ]
        )
    falling, steady = traffic.drift()
    assert (falling.tenant, steady.tenant) == ("falling", "steady")
    assert falling.is_alarm and not steady.is_alarm
    assert (falling.share, steady.share) == (0.25, 0.75)
    traffic.swapped(1.0, receipt(3))
    assert traffic.drift() == ()


def test_requests_of_an_earlier_run_tell_about_versions_and_count_for_nothing_else(tmp_path):
    path = tmp_path / "requests.jsonl"
    assert read_recent_requests(path) == []
    earlier = [request(1), request(2), request(NO_DRAFTER)]
    path.write_text("\n".join([*map(to_json, earlier), '{"cut": ', ""]))
    assert read_recent_requests(path) == earlier
    traffic = LiveTraffic(started=0.0)
    traffic.serve_first(draft(2))
    traffic.remember(read_recent_requests(path))
    traffic.observe([request(2)])
    found = traffic.evidence(draft(3), live=draft(2), previous=None, now=1.0)
    assert [(one.version, one.num_requests) for one in found.serving] == [(-1, 1), (1, 1), (2, 2)]
    assert found.num_requests_since_swap == found.since_swap.num_requests == 1
    assert found.without_speculation is None


def test_only_the_newest_part_of_a_long_record_is_read(tmp_path):
    path = tmp_path / "requests.jsonl"
    lines = [to_json(request(version)) for version in range(5000)]
    path.write_text("\n".join(lines) + "\n")
    assert path.stat().st_size > 1 << 20
    found = read_recent_requests(path)
    assert len(found) == 1000 and found[-1].max_draft_version == 4999


def at(moment, version, accepted, **labels):
    return dataclasses.replace(request(version, accepted=accepted, **labels), finished=moment)


def scores_of(traffic):
    return [(one.tenant, one.score, one.num_requests) for one in traffic.drift()]


def test_fall_that_began_before_a_restart_is_found_after_it():
    steady = [at(float(moment), 2, 20 + moment % 3) for moment in range(40)]
    falling = [at(float(40 + moment), 2, moment % 3) for moment in range(40)]
    without_restart = LiveTraffic(started=0.0)
    without_restart.serve_first(draft(2))
    without_restart.observe([*steady, *falling])
    again = LiveTraffic(started=60.0)
    again.remember([*steady, *falling[:20]], last_swap=None)
    again.serve_first(draft(2))
    again.observe(falling[20:])
    assert scores_of(again) == scores_of(without_restart)
    assert again.drift()[0].is_alarm
    forgetful = LiveTraffic(started=60.0)
    forgetful.serve_first(draft(2))
    forgetful.observe(falling[20:])
    assert not any(one.is_alarm for one in forgetful.drift())


def test_drift_after_a_restart_knows_no_requests_from_before_the_last_swap():
    earlier = [at(float(moment), 2, 30) for moment in range(30)]
    between = [at(float(30 + moment), 3, 30) for moment in range(30)]
    since = [at(float(60 + moment), 2, 10 + moment % 3) for moment in range(30)]
    again = LiveTraffic(started=90.0)
    again.remember([*earlier, *between, *since], last_swap=60.0)
    again.serve_first(draft(2))
    assert [one[2] for one in scores_of(again)] == [30]
    again.swapped(91.0, receipt(3))
    assert again.drift() == ()


def test_last_swap_of_an_earlier_run_is_read_from_its_verdicts(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    assert read_last_swap(path) is None
    path.write_text('{"kind": "verdict", "time": 1.0}\n')
    assert read_last_swap(path) is None
    lines = [
        {"kind": "swap", "time": 2.0, "receipt": {}},
        {"kind": "operator", "time": 3.0, "receipt": {}},
        {"kind": "operator", "time": 4.0, "reason": "a person lets the policy decide"},
        {"kind": "verdict", "time": 5.0, "verdict": {"reason": 'the "receipt"'}},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"receipt"')
    assert read_last_swap(path) == 3.0
