"""A real SGLang whose sink is full, and that is killed.

What else can go wrong is in the contract that this engine and the fake one share, or, where a real
engine of the installed version cannot be made to do it, in the tests with the fake one.
"""

from __future__ import annotations

import time

import psutil
import pytest

from plugins.backend_sglang.engine_tests.reference import Reference
from plugins.backend_sglang.engine_tests.running_server import RunningServer
from plugins.backend_sglang.engine_tests.test_chains import prompt

OPTIONS: dict[str, object] = {}
SINK_OPTIONS = {"max_bytes": 300_000}

pytestmark = pytest.mark.sglang


def test_a_full_sink_stays_within_its_bounds_and_costs_no_answer(
    server: RunningServer, reference: Reference
) -> None:
    server.swap(server.publish(1))
    prompts = [prompt(seed, 20) for seed in range(16)]
    answers = server.generate_all(prompts, 40)
    for one, answer in zip(prompts, answers, strict=True):
        assert answer["output_ids"] == reference.greedy(one, 40)
    deadline = time.monotonic() + 60
    while (status := server.status()).traces_kept < 16 or not status.traces_shed:
        assert time.monotonic() < deadline, status
        time.sleep(0.2)
    held = sum(path.stat().st_size for path in (server.spool / "traces").iterdir())
    assert 0 < held <= SINK_OPTIONS["max_bytes"]


def test_an_engine_that_is_killed_comes_back_with_the_champion(
    server: RunningServer, reference: Reference
) -> None:
    version = server.publish(2)
    server.swap(version)
    before = max(one.sequence for one in server.finished(0))
    supervisor = server.backend._supervisor
    assert supervisor is not None
    guard = psutil.Process(server.run(supervisor.ready).pid)
    (engine,) = guard.children()
    family = engine.children(recursive=True)
    engine.kill()
    status = server.status()
    assert (status.live_version, status.checksum) == (version.version, version.checksum)
    assert supervisor.num_restarts == 1
    assert not any(process.is_running() for process in family), "nothing of the old one is left"
    answer = server.generate(prompt(31, 12), 16)
    assert answer["output_ids"] == reference.greedy(prompt(31, 12), 16)
    (stats,) = [
        one for one in server.finished(before) if one.request_id == answer["meta_info"]["id"]
    ]
    assert stats.sequence > before, "numbers go on rising"
    assert stats.max_draft_version == version.version
