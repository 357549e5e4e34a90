"""The controller's half against a server process that speaks SGLang's routes."""

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

from aurora_backend_sglang.backend import SglangBackend
from aurora_backend_sglang.config import SglangBackendOptions
from aurora_core.errors import BackendError, CheckpointError, ConfigError
from aurora_core.interfaces import ServePlan
from aurora_core.negotiation import negotiate
from aurora_core.records import NO_DRAFTER, Needs
from plugins.backend_sglang.tests.engine_records import publish, target_spec
from plugins.backend_sglang.tests.fake_sglang import INSTALLED


def options(interpreter: Path, **changes: Any) -> SglangBackendOptions:
    values = {"device": "cpu", "start_timeout_s": 60, "stop_timeout_s": 5, **changes}
    return SglangBackendOptions(python=interpreter, **values)


@pytest.fixture
async def backend(interpreter: Path) -> AsyncIterator[SglangBackend]:
    backend = SglangBackend(options(interpreter))
    yield backend
    await backend.stop()


async def ask(url: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    async with httpx.AsyncClient() as client:
        (await client.post(f"{url}/v1/chat/completions", json=body)).raise_for_status()


async def calls(url: str) -> list[str]:
    async with httpx.AsyncClient() as client:
        made: list[str] = (await client.get(f"{url}/fake/calls")).json()
    return made


async def test_a_launched_server_serves_swaps_and_stops(backend, plan: ServePlan, versions) -> None:
    await backend.start(plan)
    assert plan.initial_version is not None
    status = await backend.status()
    assert (status.live_version, status.checksum) == (1, plan.initial_version.checksum)
    assert (status.traces_kept, status.traces_shed) == (3, 2)
    await ask(backend.url)
    (request,) = await backend.finished(0)
    assert (request.sequence, request.max_draft_version) == (1, 1)
    assert await backend.finished(1) == []
    draft = publish(versions)
    receipt = await backend.swap(draft)
    assert (receipt.version, receipt.checksum, receipt.load_ms) == (2, draft.checksum, 1.5)
    assert receipt.stall_ms > 0
    assert (await backend.swap(None)).version == NO_DRAFTER
    assert (await backend.status()).live_version == NO_DRAFTER
    assert "spec_verify_calls" in await backend.metrics()
    url = backend.url
    await backend.stop()
    await backend.stop()
    with pytest.raises(httpx.ConnectError):
        await ask(url)


async def test_the_first_version_after_none_has_everything_read_again(
    backend, plan: ServePlan, versions
) -> None:
    await backend.start(plan)
    await backend.swap(None)
    for mode in ("retract", "in_place"):
        await backend.swap(publish(versions))
        assert [one for one in await calls(backend.url) if one in ("retract", "in_place")][
            -1
        ] == mode


async def test_a_server_that_dies_comes_back_with_the_champion(
    interpreter: Path, plan: ServePlan, versions
) -> None:
    backend = SglangBackend(options(interpreter))
    await backend.start(plan)
    await ask(backend.url)
    assert len(await backend.finished(0)) == 1
    draft = publish(versions)
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
    await backend.stop()


async def test_a_swap_that_times_out_but_succeeds_is_found_out(
    interpreter: Path, fault, plan: ServePlan, versions
) -> None:
    backend = SglangBackend(options(interpreter, control_timeout_s=4.0))
    await backend.start(plan)
    draft = publish(versions)
    fault("slow_swap")
    with pytest.raises(BackendError, match="does not answer POST /update_weights_from_tensor"):
        await backend.swap(draft)
    assert (await backend.status()).live_version == draft.version
    assert backend._live == draft, "the engine would start again with what it serves"
    await ask(backend.url)  # refuses while it is paused
    await backend.stop()


async def test_damaged_weights_never_go_live_and_the_server_goes_on(
    backend, plan: ServePlan, versions
) -> None:
    await backend.start(plan)
    draft = publish(versions)
    weights = Path(draft.path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(BackendError, match="announced with checksum"):
        await backend.swap(draft)
    assert (await backend.status()).live_version == 1
    await ask(backend.url)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("other_weights", "reports checksum '000000000000' for version 2"),
        ("target_changes", r"1 tensors of the target, 'model\.embed_tokens\.weight' among them"),
        ("hashing_fails", r"could not be compared .* \(ValueError: unreadable\)"),
        ("session_open", "session is already open"),
    ],
)
async def test_a_swap_that_goes_wrong_is_told_in_a_sentence(
    backend, fault, plan: ServePlan, versions, name: str, sentence: str
) -> None:
    await backend.start(plan)
    fault(name)
    with pytest.raises(BackendError, match=sentence):
        await backend.swap(publish(versions))
    await ask(backend.url)  # refuses while it is paused


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("without_half", "runs without Aurora's recorder"),
        ("missing_hook", r"has no sglang\.srt\.moved, where Aurora's recorder looks"),
        ("open_to_anyone", r"control routes of the server at .* are open to anyone"),
        ("other_protocol", "speaks protocol 3, and this one 2"),
        ("other_version", r"SGLang 0\.5\.9 is installed, but this backend works with 0\.5\.23"),
        ("dies_at_start", r"SGLang ended with exit status 1 \(RuntimeError: out of memory\)"),
    ],
)
async def test_a_server_that_does_not_fit_is_told_in_a_sentence(
    backend, fault, plan: ServePlan, name: str, sentence: str
) -> None:
    fault(name)
    with pytest.raises(BackendError, match=sentence):
        await backend.start(plan)


@pytest.mark.parametrize(
    ("installed", "sentence"),
    [
        ({**INSTALLED, "sglang": "0.6.0"}, r"SGLang 0\.6\.0 is installed, .* 0\.5\.23"),
        ({"missing": []}, r"holds no SGLang; make one with `make sglang-env`"),
        ({"sglang": "0.5.23"}, "not aurora-core, whose recorder"),
        ({**INSTALLED, "missing": ["pluggy"]}, r"lacks the modules \['pluggy'\]"),
    ],
)
async def test_an_unfit_environment_is_refused_in_a_sentence(
    backend, plan: ServePlan, monkeypatch: pytest.MonkeyPatch, installed: Any, sentence: str
) -> None:
    monkeypatch.setenv("FAKE_SGLANG_INSTALLED", json.dumps(installed))
    with pytest.raises(BackendError, match=sentence):
        backend.check()
    with pytest.raises(BackendError, match=sentence):
        await backend.start(plan)


def test_a_check_looks_at_the_address_and_leaves_a_server_to_attach_to_alone(
    interpreter: Path,
) -> None:
    SglangBackend(options(interpreter)).check()
    with pytest.raises(
        BackendError, match=r"cannot listen on 192\.0\.2\.1:0 \(.*; set backend.host"
    ):
        SglangBackend(options(interpreter, host="192.0.2.1")).check()
    away = {"url": "http://127.0.0.1:1", "token": "t", "host": "192.0.2.1"}
    SglangBackend(options(Path("/nowhere/python"), **away)).check()


async def test_a_missing_interpreter_is_refused_in_a_sentence(plan: ServePlan) -> None:
    backend = SglangBackend(options(Path("/nowhere/python")))
    with pytest.raises(BackendError, match="there is no interpreter '/nowhere/python'"):
        await backend.start(plan)


async def test_layers_that_sglang_cannot_name_are_refused(backend, plan: ServePlan) -> None:
    needs = Needs(features=plan.needs.features, aux_layers=(0, 2, 4))
    with pytest.raises(BackendError, match=r"what enters layers 1 to 3 .* reads \[0, 4\]"):
        await backend.start(replace(plan, needs=needs))


async def test_a_checkpoint_of_another_kind_is_not_served(
    backend, plan: ServePlan, versions
) -> None:
    draft = publish(versions)
    config = Path(draft.path) / "config.json"
    config.write_text(config.read_text().replace("Eagle3", "Medusa"))
    with pytest.raises(CheckpointError, match="is of LlamaForCausalLMMedusa"):
        await backend.start(replace(plan, initial_version=draft))


async def test_an_argument_of_auroras_own_is_refused(interpreter: Path, plan: ServePlan) -> None:
    backend = SglangBackend(options(interpreter, arguments=("--port=1",)))
    with pytest.raises(BackendError, match=r"names '--port', which Aurora sets"):
        await backend.start(plan)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--api-key=secret", "'--api-key', and SGLang asks for that key"),
        ("--ssl-certfile", "'--ssl-certfile', and Aurora speaks plain HTTP"),
    ],
)
async def test_an_argument_that_would_shut_the_controller_out_is_refused(
    interpreter: Path, plan: ServePlan, argument: str, reason: str
) -> None:
    backend = SglangBackend(options(interpreter, arguments=(argument,)))
    with pytest.raises(BackendError, match=f"{reason}.*a proxy before the server"):
        await backend.start(plan)


@pytest.mark.parametrize(("eagle_topk", "possible"), [(1, True), (2, False)])
def test_single_requests_go_without_drafts_where_chains_are_drafted(
    interpreter: Path, eagle_topk: int, possible: bool
) -> None:
    backend = SglangBackend(options(interpreter, eagle_topk=eagle_topk))
    assert backend.provides.request_routing is possible


async def test_trees_cannot_be_switched_off(interpreter: Path, plan: ServePlan) -> None:
    backend = SglangBackend(options(interpreter, eagle_topk=2))
    await backend.start(plan)
    with pytest.raises(BackendError, match="cannot switch speculation off while it drafts trees"):
        await backend.swap(None)
    await backend.stop()


def test_an_address_needs_a_token() -> None:
    with pytest.raises(ValidationError, match="`url` needs `token`"):
        SglangBackendOptions(url="http://127.0.0.1:1")


def test_medusa_is_refused_by_what_is_declared(interpreter: Path) -> None:
    from aurora_core.testing.fake_speculator import FakeSpeculator

    class Medusa(FakeSpeculator):
        formats = frozenset({"module", "medusa"})

    speculator = Medusa(Medusa.Config(), target_spec())
    backend = SglangBackend(options(interpreter))
    with pytest.raises(ConfigError, match="speculator 'medusa' cannot work with backend 'sglang'"):
        negotiate(speculator, backend, speculator_name="medusa", backend_name="sglang")


@pytest.mark.parametrize(
    ("device", "rules"),
    [("cpu", {"greedy_always"}), ("cuda", {"greedy", "point_mass", "rejection"})],
)
def test_verification_is_declared_by_device(interpreter: Path, device: str, rules: Any) -> None:
    backend = SglangBackend(options(interpreter, device=device))
    assert backend.provides.verification_rules == rules
