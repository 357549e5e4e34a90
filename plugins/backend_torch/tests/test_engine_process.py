"""The whole engine process on a tiny target: HTTP, tokens, swaps, traces and the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import openai
import psutil
import pytest
import pytest_asyncio

from aurora_backend_torch.backend import TorchBackend
from aurora_backend_torch.config import TorchBackendOptions
from aurora_core.errors import BackendError
from aurora_core.records import NO_DRAFTER, DraftVersion, TargetSpec
from aurora_core.spool import SpoolOptions, open_reader
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.toy_speculator import ToyOptions, ToySpeculator
from aurora_core.versions import VersionStore
from plugins.backend_torch.tests.conftest import make_importable, plan_for

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPTS = ["SELECT name", "def f(x):", "What is 2 + 2?", "hello"]
MAX_TOKENS = 24


@pytest.fixture(scope="session")
def target(tiny_directory: Path) -> TargetSpec:
    return read_target_spec(tiny_directory)


@contextlib.asynccontextmanager
async def running(target: TargetSpec, run_dir: Path) -> AsyncIterator[TorchBackend]:
    """Run an engine process, and see that none is left."""
    before = children()
    options = TorchBackendOptions(num_threads=1, max_running_requests=3, dtype="float32")
    backend = TorchBackend(options)
    with pytest.MonkeyPatch.context() as patch:
        make_importable(patch, run_dir / "toy")
        try:
            await backend.start(plan_for(target, run_dir))
            yield backend
        finally:
            await backend.stop()
    assert children() <= before


def children() -> set[psutil.Process]:
    """Return the processes below this one."""
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(target: TargetSpec, run_dir: Path) -> AsyncIterator[TorchBackend]:
    """One engine process for the tests that leave it running."""
    async with running(target, run_dir) as backend:
        yield backend


def client_of(backend: TorchBackend) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{backend.url}/v1", api_key="unused", max_retries=0)


def publish(target: TargetSpec, run_dir: Path, version: int) -> DraftVersion:
    """Write an untrained toy drafter as a version of the run."""
    speculator = ToySpeculator(ToyOptions(), target)
    module = speculator.build_module(TargetWeights(target), [])
    return VersionStore(run_dir / "versions").stage(
        version,
        lambda path: speculator.save(module, path),
        parent=None,
        speculator="toy",
        target_fingerprint=target.fingerprint,
        global_step=0,
        num_tokens_trained=0,
    )


async def answers(
    backend: TorchBackend, drafter: str | int = "live"
) -> list[openai.types.Completion]:
    """Ask for every prompt at once, greedily."""
    client = client_of(backend)
    ask = [
        client.completions.create(
            model=(await client.models.list()).data[0].id,
            prompt=prompt,
            max_tokens=MAX_TOKENS,
            temperature=0,
            extra_body={
                "aurora": {"drafter": drafter},
                "return_token_ids": True,
                "ignore_eos": True,
            },
        )
        for prompt in PROMPTS
    ]
    return list(await asyncio.gather(*ask))


def token_ids(given: list[openai.types.Completion]) -> list[list[int]]:
    return [answer.choices[0].token_ids for answer in given]


async def test_swaps_change_the_drafter_and_never_the_output(
    backend: TorchBackend, target: TargetSpec, run_dir: Path
) -> None:
    plain = await answers(backend)
    assert all(len(ids) == MAX_TOKENS for ids in token_ids(plain))
    assert all(answer.aurora["max_draft_version"] == NO_DRAFTER for answer in plain)

    first, second = (publish(target, run_dir, version) for version in (1, 2))
    receipt = await backend.swap(first)
    assert (receipt.version, receipt.checksum) == (1, first.checksum)
    drafted = await answers(backend)
    assert token_ids(drafted) == token_ids(plain)
    assert all(answer.aurora["max_draft_version"] == 1 for answer in drafted)
    assert all(answer.aurora["num_drafted"] > 0 for answer in drafted)

    await backend.load_resident(2)
    routed = await answers(backend, drafter=2)
    assert token_ids(routed) == token_ids(plain)
    assert all(answer.aurora["max_draft_version"] == 2 for answer in routed)
    assert all(
        answer.aurora["num_drafted"] == 0 for answer in await answers(backend, drafter="none")
    )

    pending = asyncio.create_task(answers(backend))
    await backend.swap(second)
    assert token_ids(await pending) == token_ids(plain), "no request is lost in a swap"
    status = await backend.status()
    assert (status.live_version, status.checksum) == (2, second.checksum)
    assert status.memory_mib > 50

    finished = await backend.finished(0)
    assert len(finished) == 5 * len(PROMPTS)
    assert await backend.finished(finished[-1].sequence) == []
    await backend.unload_resident(1)
    with pytest.raises(BackendError, match=r"^version 2 is live; make another one live first$"):
        await backend.unload_resident(2)
    assert (await backend.swap(None)).version == NO_DRAFTER


async def test_refused_swap_keeps_the_live_drafter(
    backend: TorchBackend, target: TargetSpec, run_dir: Path
) -> None:
    draft = publish(target, run_dir, 3)
    await backend.swap(draft)
    with pytest.raises(BackendError, match=r"there is no drafter version 9 to load"):
        await backend.swap(replace(draft, version=9))
    with pytest.raises(BackendError, match=r"has checksum .* on disk"):
        await backend.swap(replace(draft, checksum="0" * 64))
    weights = Path(publish(target, run_dir, 4).path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    broken = replace(draft, version=4, checksum="")
    with pytest.raises(BackendError):
        await backend.swap(broken)
    assert (await backend.status()).live_version == 3


async def test_stop_string_and_seed_behave_over_the_real_engine(backend: TorchBackend) -> None:
    client = client_of(backend)

    model = (await client.models.list()).data[0].id
    options = {"model": model, "prompt": "hello", "max_tokens": MAX_TOKENS}
    whole = await client.completions.create(temperature=0, **options)
    text = whole.choices[0].text
    stop = text[5:7]
    cut = await client.completions.create(temperature=0, stop=stop, **options)
    assert cut.choices[0].text == text[: text.find(stop)]
    assert cut.choices[0].finish_reason == "stop"
    sampled = [
        (await client.completions.create(temperature=1, seed=seed, **options)).choices[0].text
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]


async def test_sigterm_ends_cleanly_with_every_trace_written(
    target: TargetSpec, tmp_path: Path
) -> None:
    before = children()
    async with running(target, tmp_path) as backend:
        await answers(backend)
        [engine] = children() - before
        os.kill(engine.pid, signal.SIGTERM)
        with pytest.raises(BackendError, match=r"^the engine ended with exit status 0; see '"):
            for _ in range(100):
                await backend.status()
                await asyncio.sleep(0.1)
    assert "Traceback" not in (tmp_path / "logs" / "engine.log").read_text()
    reader = open_reader(SpoolOptions(path=tmp_path / "spool").url)
    reader.poll()
    assert len(list(reader.iterate())) == len(PROMPTS)
