"""A real SGLang whose sink is full, that is killed, and one that knows nothing of Aurora.

What else can go wrong is in the contract that this engine and the fake one share, or, where a real
engine of the installed version cannot be made to do it, in the tests with the fake one.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import httpx
import psutil
import pytest
from pydantic import SecretStr

from aurora_backend_sglang.backend import SglangBackend
from aurora_backend_sglang.config import SglangBackendOptions
from aurora_backend_sglang.server_command import CPU_ARGUMENTS
from aurora_core.engine_process.ports import free_port
from aurora_core.engine_process.server import ServerProcess
from aurora_core.errors import BackendError
from plugins.backend_sglang.engine_tests.reference import Reference
from plugins.backend_sglang.engine_tests.running_server import SERVER_PATH, RunningServer
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


async def test_a_server_without_the_recorder_cannot_be_attached_to(
    server: RunningServer, tmp_path: Path
) -> None:
    port = free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    command = [os.environ["AURORA_SGLANG_PYTHON"], "-m", "sglang.launch_server"]
    command += ["--model-path", server.target.path, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--device", "cpu", "--dtype", "float32", "--max-total-tokens", "1024"]
    stock = await ServerProcess.launch(
        [*command, *CPU_ARGUMENTS],
        name="SGLang",
        environment={
            "PYTHONPATH": SERVER_PATH,
            "SGLANG_USE_CPU_ENGINE": "1",
            "TORCH_COMPILE_DISABLE": "1",
            "OMP_NUM_THREADS": "1",
        },
        log_path=tmp_path / "stock.log",
        grace_s=20,
    )

    async def answers() -> bool:
        try:
            return (await client.get("/health", timeout=10)).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            await stock.wait_healthy(answers, 300)
        options = SglangBackendOptions(url=url, token=SecretStr("any"), device="cpu")
        with pytest.raises(BackendError, match="runs without Aurora's recorder: either it was"):
            await SglangBackend(options).start(server.plan)
    finally:
        await stock.end()
