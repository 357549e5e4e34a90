"""A real vLLM server on a tiny target, through the controller's half."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import httpx
import psutil
import pytest
from pydantic import SecretStr

from aurora_backend_vllm.backend import VllmBackend
from aurora_backend_vllm.config import VllmBackendOptions
from aurora_backend_vllm.counters import count
from aurora_core.engine_process.ports import free_port
from aurora_core.engine_process.server import ServerProcess
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from aurora_core.records import NO_DRAFTER, DraftVersion, RequestStats
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.traffic.endpoint import Endpoint, RequestSettings
from aurora_core.traffic.lossless import check_lossless
from aurora_core.traffic.prompts.prompt import Prompt
from aurora_core.versions import VersionStore

PYTHON = os.environ.get("AURORA_TEST_VLLM", "")
ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="needs vLLM's environment: run `make test-vllm`"),
]
OPTIONS = {"draft_vocab_size": 128}
SINK_BYTES = 500_000
"""Room for a few of the traces that the load leaves."""

PUBLISH = """
import sys, torch
from pathlib import Path
from aurora_core.components import build_component
from aurora_core.config import ComponentSection
from aurora_core.plugins import Plugins
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.versions import VersionStore

target = read_target_spec(Path(sys.argv[1]), name="tiny")
plugins = Plugins()
plugins.load()
section = ComponentSection(name="eagle3", draft_vocab_size=128)
speculator = build_component(plugins, "speculators", section, target=target)
store = VersionStore(Path(sys.argv[2]))
for seed in range(4):
    torch.manual_seed(seed)
    module = speculator.build_module(TargetWeights(target), ())
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.dim() == 2:
                parameter.add_(0.02 * torch.randn_like(parameter))
    store.stage(
        store.next_version(), lambda path: speculator.save(module, path), parent=None,
        speculator="eagle3", target_fingerprint=target.fingerprint, global_step=seed,
        num_tokens_trained=seed,
    )
print(target.fingerprint)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target whose heads are as large as vLLM's kernels for CPUs take, and four versions."""
    folder = tmp_path_factory.mktemp("served")
    make_tiny_target(folder / "target", vocab_size=320, hidden_size=128, num_layers=4, seed=3)
    subprocess.run(
        [sys.executable, "-c", PUBLISH, str(folder / "target"), str(folder / "versions")],
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def served_plan(folder: Path) -> ServePlan:
    from aurora_core.components import build_component
    from aurora_core.config import ComponentSection
    from aurora_core.plugins import Plugins
    from aurora_core.target.spec import read_target_spec

    target = read_target_spec(folder / "target", name="tiny")
    plugins = Plugins()
    plugins.load()
    section = ComponentSection.model_validate({"name": "eagle3", **OPTIONS})
    needs = build_component(plugins, "speculators", section, target=target).needs
    return ServePlan(
        target=target,
        speculator="eagle3",
        speculator_options=OPTIONS,
        plugins=None,
        needs=needs,
        num_speculative_tokens=3,
        versions_dir=str(folder / "versions"),
        initial_version=None,
        sink="spool",
        sink_options={"path": str(folder / "spool"), "max_bytes": SINK_BYTES},
        run_dir=str(folder / "run"),
        seed=0,
    )


@pytest.fixture
async def backend(served_plan: ServePlan) -> AsyncIterator[VllmBackend]:
    options = VllmBackendOptions(
        python=Path(PYTHON), dtype="float32", max_context=256, max_running_requests=8, num_threads=1
    )
    backend = VllmBackend(options)
    await backend.start(served_plan)
    yield backend
    await backend.stop()


async def everything_finished(backend: VllmBackend, number: int) -> list[RequestStats]:
    with anyio.fail_after(60):
        while len(requests := await backend.finished(0)) < number:
            await anyio.sleep(0.2)
    return requests


async def test_swaps_under_load_lose_no_request_and_no_token(
    backend: VllmBackend, folder: Path
) -> None:
    store = VersionStore(folder / "versions")
    versions: list[DraftVersion | None] = [store.read(number) for number in (1, 2, 3)]
    prompts = [Prompt("test", f"Question {number}: why?") for number in range(48)]
    answers = []
    num_sent = 0

    async def client(endpoint: Endpoint) -> None:
        nonlocal num_sent
        while num_sent < len(prompts):
            num_sent += 1
            answers.append(
                await endpoint.complete(prompts[num_sent - 1], RequestSettings(max_tokens=40))
            )

    assert (await backend.status()).live_version == NO_DRAFTER
    async with Endpoint(backend.url) as endpoint:
        async with anyio.create_task_group() as clients:
            for _ in range(8):
                clients.start_soon(client, endpoint)
            for number, version in enumerate(versions, start=1):
                while len(answers) < 10 * number:
                    await anyio.sleep(0.02)
                receipt = await backend.swap(version)
                status = await backend.status()
                assert (status.live_version, status.checksum) == (number, receipt.checksum)
        assert len(answers) == len(prompts)
        assert all(answer.token_ids and answer.speculation for answer in answers)
        report = await check_lossless(endpoint, prompts[:12], max_tokens=40, concurrency=4)
        assert (report.checked, report.mismatches) == (12, 0)
    requests = await everything_finished(backend, len(prompts) + 24)
    seen = {one.max_draft_version for one in requests}
    assert {NO_DRAFTER, 1, 2, 3} <= seen
    ours, vllms = count(requests), await backend.counters()
    assert not ours.differs_from(vllms), (ours, vllms)
    await backend.swap(None)
    async with Endpoint(backend.url) as endpoint:
        answer = await endpoint.complete(prompts[0], RequestSettings(max_tokens=8))
    assert answer.speculation is not None and answer.speculation.num_drafted == 0


async def test_a_full_sink_stays_within_its_bounds_and_costs_no_answer(
    backend: VllmBackend, folder: Path
) -> None:
    prompts = [Prompt("test", f"Question {number}: why?") for number in range(16)]
    async with Endpoint(backend.url) as endpoint:
        answers = await asyncio.gather(
            *(endpoint.complete(prompt, RequestSettings(max_tokens=40)) for prompt in prompts)
        )
        report = await check_lossless(endpoint, prompts, max_tokens=40, concurrency=8)
    assert all(answer.num_output_tokens for answer in answers)
    assert (report.checked, report.mismatches) == (16, 0)
    deadline = anyio.current_time() + 60
    while (status := await backend.status()).traces_kept < 16 or not status.traces_shed:
        assert anyio.current_time() < deadline, status
        await anyio.sleep(0.2)
    held = sum(path.stat().st_size for path in (folder / "spool" / "traces").iterdir())
    assert 0 < held <= SINK_BYTES


async def test_an_engine_that_is_killed_comes_back_with_the_champion(
    backend: VllmBackend, folder: Path, served_plan: ServePlan
) -> None:
    draft = VersionStore(folder / "versions").read(2)
    await backend.swap(draft)
    assert backend._supervisor is not None
    guard = psutil.Process((await backend._supervisor.ready()).pid)
    server = guard.children()[0]
    family = server.children(recursive=True)
    server.kill()
    status = await backend.status()
    assert (status.live_version, status.checksum) == (2, draft.checksum)
    assert not any(process.is_running() for process in family), "nothing of the old one is left"
    with pytest.raises(BackendError, match="sha256"):
        await backend.swap(replace(draft, checksum="0" * 64))
    assert (await backend.status()).live_version == 2


async def test_a_server_without_the_recorder_cannot_be_attached_to(
    folder: Path, served_plan: ServePlan
) -> None:
    port = free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder / "target"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "128"]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    server = await ServerProcess.launch(
        command,
        name="vLLM",
        environment=variables,
        log_path=folder / "stock.log",
        grace_s=20,
    )

    async def answers() -> bool:
        try:
            return (await client.get("/health")).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            await server.wait_healthy(answers, 300)
        attached = VllmBackend(VllmBackendOptions(url=url, token=SecretStr("any")))
        with pytest.raises(BackendError, match="runs without Aurora's half; start it as"):
            await attached.start(served_plan)
    finally:
        await server.end()


STOCK = """
import sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    target, drafter = sys.argv[1:]
    arguments = dict(model=target, dtype="float32", enforce_eager=True, max_model_len=256)
    speculation = {"method": "eagle3", "model": drafter, "num_speculative_tokens": 3}
    llm = LLM(**arguments, speculative_config=speculation, distributed_executor_backend="uni")
    prompts = [{"prompt_token_ids": [5, 6, 7, number]} for number in range(10, 14)]
    for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=10)):
        assert len(output.outputs[0].token_ids) == 10
    import json
    print(json.dumps("aurora_core" in sys.modules))
"""


def test_a_published_version_loads_in_vllm_without_aurora(folder: Path) -> None:
    drafter = VersionStore(folder / "versions").read(1).path
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    finished = subprocess.run(
        [PYTHON, "-c", STOCK, str(folder / "target"), drafter],
        env={**os.environ, **variables, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert json.loads(finished.stdout.splitlines()[-1]) is False
