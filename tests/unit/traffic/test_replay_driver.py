"""Replays: order of events, stopping, sums, results files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import signal
import threading
import time

import pytest
from rich.console import Console

from aurora_core.errors import BackendError, ConfigError
from aurora_core.traffic.completion import SpeculationStats
from aurora_core.traffic.distribution import acceptance_length, describe
from aurora_core.traffic.driver import ReplayDriver, ReplaySettings
from aurora_core.traffic.endpoint import Endpoint
from aurora_core.traffic.prompts import Prompt, generate
from aurora_core.traffic.replay import replay_command
from aurora_core.traffic.results import ReplayResult, summarise, write_json

PROMPTS = [Prompt("math", f"prompt {index}") for index in range(12)]


async def replay(server, prompts=PROMPTS, **settings):
    async with Endpoint(server.url) as endpoint:
        driver = ReplayDriver(endpoint, prompts, ReplaySettings(max_tokens=8, **settings))
        return [result async for result in driver.results()]


async def test_every_prompt_gets_one_result(server):
    results = await replay(server, concurrency=3)
    assert sorted(result.index for result in results) == list(range(12))
    assert all(result.ok and result.num_output_tokens == 8 for result in results)
    assert {body["messages"][0]["content"] for body in server.bodies} == {
        prompt.text for prompt in PROMPTS
    }
    assert {body["aurora"]["route"] for body in server.bodies} == {"math"}


async def test_requests_in_flight_are_bounded_and_reach_the_bound(server):
    server.plan = ["slow"] * 12
    async with Endpoint(server.url) as endpoint:
        driver = ReplayDriver(endpoint, PROMPTS, ReplaySettings(max_tokens=8, concurrency=5))
        replaying = asyncio.create_task(collect(driver))
        while server.num_in_flight < 5:
            await asyncio.sleep(0.005)
        assert driver.num_sent == 5
        server.hold.set()
        assert len(await replaying) == 12
    assert server.most_in_flight == 5


async def collect(driver):
    return [result async for result in driver.results()]


async def test_a_failed_request_is_recorded_and_the_rest_goes_on(server):
    server.plan = ["", "500", "disconnect", "malformed"]
    results = await replay(server, concurrency=1)
    assert [result.ok for result in results] == [True, False, False, False] + [True] * 8
    assert results[1].error == "status 500: out of cheese"
    summary = summarise(results)
    assert (summary.requests, summary.failed) == (12, 3)
    assert summary.failures == {"status 500": 1, "disconnected": 1, "malformed": 1}


async def test_stop_sends_nothing_more_and_lets_requests_end(server):
    endless = (Prompt("math", f"prompt {index}") for index in itertools.count())
    async with Endpoint(server.url) as endpoint:
        driver = ReplayDriver(endpoint, endless, ReplaySettings(max_tokens=8, concurrency=2))
        results = []
        async for result in driver.results():
            results.append(result)
            if len(results) == 5:
                driver.stop()
                driver.stop()
    assert 5 <= len(results) <= 7
    assert len(results) == driver.num_sent == len(server.bodies)
    assert all(result.ok for result in results)


async def test_stop_is_noticed_while_waiting_for_the_next_arrival(server):
    async with Endpoint(server.url) as endpoint:
        settings = ReplaySettings(max_tokens=8, rate=1e-6)
        driver = ReplayDriver(endpoint, PROMPTS, settings)
        results = []
        async with asyncio.timeout(20):
            async for result in driver.results():
                results.append(result)
                driver.stop()
    assert len(results) == 1


async def test_closing_the_generator_abandons_requests_in_flight(server):
    server.plan = ["", "slow", "slow"]
    async with Endpoint(server.url) as endpoint:
        driver = ReplayDriver(endpoint, PROMPTS, ReplaySettings(max_tokens=8, concurrency=1))
        async with contextlib.aclosing(driver.results()) as arriving:
            async for _ in arriving:
                break
        before = len(asyncio.all_tasks())
        assert before == 1
    assert driver.num_sent <= 2


async def test_a_cancelled_consumer_leaves_no_task_behind(server):
    server.plan = ["slow"] * 4
    async with Endpoint(server.url) as endpoint:
        driver = ReplayDriver(endpoint, PROMPTS, ReplaySettings(max_tokens=8, concurrency=4))
        replaying = asyncio.create_task(collect(driver))
        while server.num_in_flight < 4:
            await asyncio.sleep(0.005)
        replaying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replaying
        assert len(asyncio.all_tasks()) == 1


def test_arrivals_are_poisson_and_seeded():
    def gaps(seed):
        driver = ReplayDriver(None, (), ReplaySettings(rate=4.0, seed=seed))
        times = list(
            itertools.accumulate(range(4000), lambda at, _: driver._after(at), initial=0.0)
        )
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    assert gaps(1) == gaps(1) != gaps(2)
    mean = sum(gaps(1)) / 4000
    assert mean == pytest.approx(0.25, rel=0.1)
    assert sum(gap > mean for gap in gaps(1)) / 4000 == pytest.approx(0.37, abs=0.05)


async def test_sampled_requests_are_seeded_one_by_one(server):
    await replay(server, PROMPTS[:3], temperature=0.7, seed=40, concurrency=1)
    assert [body["seed"] for body in server.bodies] == [40, 41, 42]


def result(**changes):
    values = {"index": 0, "domain": "sql", "ok": True, "num_output_tokens": 10}
    return ReplayResult(**(values | changes))


def stats(steps, accepted):
    return SpeculationStats(
        num_steps=steps,
        num_drafted=3 * steps,
        accepted_per_position=accepted,
        acceptance_length=1 + sum(accepted) / steps,
    )


def test_percentiles_interpolate_linearly():
    figures = describe([*range(1, 22), None])
    assert (figures.count, figures.mean, figures.p50) == (21, 11, 11)
    assert (figures.p05, figures.p95) == pytest.approx((2, 20))
    few = describe([10.0, 20.0])
    assert (few.p05, few.p50, few.p95) == pytest.approx((10.5, 15.0, 19.5))
    one = describe([7.0])
    assert (one.count, one.mean, one.p05, one.p50, one.p95) == (1, 7.0, 7.0, 7.0, 7.0)
    assert describe([]).mean is None


def test_acceptance_length_weighs_requests_by_their_steps():
    assert acceptance_length([stats(10, (5, 1, 0)), stats(30, (20, 10, 4)), None]) == 2.0
    assert acceptance_length([None]) is None


def test_summary_leaves_failed_requests_out_and_splits_by_domain():
    summary = summarise(
        [
            result(otps=10.0, ttft_s=0.1, aurora=stats(10, (10,)), num_retries=2),
            result(otps=30.0, ttft_s=0.3, domain="chat"),
            result(ok=False, error="timeout: no answer", otps=999.0, num_output_tokens=999),
        ],
        wall_s=4.0,
    )
    assert (summary.requests, summary.failed, summary.failures) == (3, 1, {"timeout": 1})
    assert (summary.num_output_tokens, summary.throughput, summary.retries) == (20, 5.0, 2)
    assert (summary.otps.mean, summary.ttft_s.p50) == (20.0, pytest.approx(0.2))
    assert summary.acceptance_length == 2.0
    assert summary.domains["sql"].requests == 2
    assert summary.domains["sql"].failed == 1
    assert summary.domains["chat"].acceptance_length is None


def plain_console():
    return Console(file=io.StringIO(), width=200)


def test_the_command_writes_results_without_the_text(server, tmp_path):
    console, out = plain_console(), tmp_path / "replay.json"
    summary = replay_command(
        server.url, domains=["sql", "chat"], requests=6, max_tokens=8, out=out, console=console
    )
    document = json.loads(out.read_text())
    assert summary.requests == 6
    assert document["schema"] == 1
    assert document["model"] == "fake"
    assert document["prompts"] == "sql+chat, mixed, train, seed 0"
    assert document["summary"]["domains"].keys() == {"sql", "chat"}
    assert [one["index"] for one in document["requests"]] == list(range(6))
    assert document["requests"][0]["aurora"]["acceptance_length"] == 2.0
    assert "text" not in document["requests"][0]
    printed = console.file.getvalue()
    assert "acceptance" in printed and "6 requests" in printed
    assert os.listdir(tmp_path) == ["replay.json"]


def test_the_command_replays_a_whole_file_in_order(server, tmp_path):
    path, out = tmp_path / "mine.jsonl", tmp_path / "replay.json"
    path.write_text("".join(json.dumps({"prompt": f"question {n}"}) + "\n" for n in range(5)))
    replay_command(
        server.url,
        prompts=path,
        max_tokens=8,
        concurrency=1,
        out=out,
        keep_text=True,
        console=plain_console(),
    )
    assert [body["messages"][0]["content"] for body in server.bodies] == [
        f"question {n}" for n in range(5)
    ]
    assert len(json.loads(out.read_text())["requests"][0]["text"]) == 8


def test_the_command_sends_the_generators_prompts(server):
    replay_command(
        server.url,
        domains=["math"],
        split="holdout",
        seed=9,
        requests=4,
        max_tokens=8,
        concurrency=1,
        console=plain_console(),
    )
    expected = generate(["math"], split="holdout", seed=9, num_prompts=4)
    assert [body["messages"][0]["content"] for body in server.bodies] == [
        prompt.text for prompt in expected
    ]


def test_a_replay_in_which_everything_fails_is_an_error(server, tmp_path):
    server.plan = ["500"] * 3
    out = tmp_path / "replay.json"
    with pytest.raises(
        BackendError, match=r"none of 3 requests to .* succeeded; .* status 500: out of cheese"
    ):
        replay_command(server.url, requests=3, out=out, console=plain_console())
    assert json.loads(out.read_text())["summary"]["failed"] == 3


def test_interrupting_the_command_keeps_what_came_back(server, tmp_path):
    server.plan, out = ["slow"] * 50, tmp_path / "replay.json"

    def interrupt():
        while server.num_in_flight < 2:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        server.hold.set()

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    summary = replay_command(
        server.url, requests=50, concurrency=2, max_tokens=8, out=out, console=plain_console()
    )
    interrupting.join()
    assert 2 <= summary.requests < 50
    assert summary.failed == 0
    assert len(json.loads(out.read_text())["requests"]) == summary.requests
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_results_that_cannot_be_written_are_refused_before_the_first_request(server, tmp_path):
    with pytest.raises(ConfigError, match="is a folder; name a file"):
        replay_command(server.url, out=tmp_path, console=plain_console())
    with pytest.raises(ConfigError, match="does not exist; create it"):
        replay_command(server.url, out=tmp_path / "no" / "x.json", console=plain_console())
    with pytest.raises(ConfigError, match=r"cannot be written to .*: Not a directory"):
        (tmp_path / "file").touch()
        write_json(tmp_path / "file" / "x.json", {})
    assert not server.bodies


def test_absurd_settings_are_refused(server):
    with pytest.raises(ConfigError, match="concurrency must be at least 1, not 0"):
        replay_command(server.url, concurrency=0, console=plain_console())
    with pytest.raises(ConfigError, match="rate must be above 0, not -1"):
        replay_command(server.url, rate=-1, console=plain_console())


def test_progress_is_lines_off_a_terminal_and_a_bar_on_one(server, monkeypatch):
    monkeypatch.setattr("aurora_core.traffic.progress._LINE_EVERY_S", 0.0)
    console = plain_console()
    replay_command(server.url, requests=3, max_tokens=8, console=console)
    assert "replay: 2/3 requests, 14.0 tokens/s, acceptance length 2.00" in console.file.getvalue()
    terminal = Console(file=io.StringIO(), width=200, force_terminal=True)
    replay_command(server.url, requests=3, max_tokens=8, console=terminal)
    assert "replay: " not in terminal.file.getvalue()
    assert "3/3" in terminal.file.getvalue()
