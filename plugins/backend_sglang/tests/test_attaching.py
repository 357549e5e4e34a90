"""The controller's half beside a server that somebody else started."""

from __future__ import annotations

from typing import Any

import pytest

from aurora_backend_sglang.backend import SglangBackend
from aurora_backend_sglang.config import SglangBackendOptions
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from aurora_core.records import Needs
from plugins.backend_sglang.tests.conftest import TOKEN
from plugins.backend_sglang.tests.test_backend import ask


def attached(url: str, **changes: Any) -> SglangBackend:
    return SglangBackend(SglangBackendOptions(url=url, token=TOKEN, device="cpu", **changes))


async def test_a_running_server_is_attached_to_and_left_running(
    plan: ServePlan, versions, serve
) -> None:
    assert plan.initial_version is not None
    served = serve(versions)
    await ask(served.url)
    served.scheduler.acknowledged = 1  # by the run of before
    backend = attached(served.url)
    await backend.start(plan)
    assert (await backend.status()).live_version == 1, "the version to begin with is loaded"
    assert await backend.finished(0) == [], "requests of before are not this run's"
    await ask(backend.url)
    assert [one.sequence for one in await backend.finished(0)] == [1]
    await backend.stop()
    await ask(served.url)


async def test_a_session_that_was_left_open_is_closed_first(
    plan: ServePlan, versions, serve
) -> None:
    served = serve(versions)
    served.scheduler.in_session = True
    backend = attached(served.url)
    await backend.start(plan)
    assert (await backend.status()).live_version == 1
    assert not served.scheduler.in_session
    await backend.stop()


async def test_a_server_without_the_recorder_cannot_be_attached_to(
    plan: ServePlan, versions, serve
) -> None:
    with pytest.raises(BackendError, match="runs without Aurora's recorder"):
        await attached(serve(versions, with_half=False).url).start(plan)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"needs": Needs(aux_layers=(1, 2))}, "its layers to record is"),
        ({"num_speculative_tokens": 5}, "its draft depth is 5, expected 3"),
        (
            {"requests_without_drafts": "refuse"},
            "its rule for requests without drafts is 'refuse', expected 'allow'",
        ),
    ],
)
async def test_a_server_of_another_run_cannot_be_attached_to(
    plan: ServePlan, versions, serve, changes: Any, sentence: str
) -> None:
    with pytest.raises(BackendError, match=sentence):
        await attached(serve(versions, **changes).url).start(plan)


async def test_a_wrong_token_is_told(plan: ServePlan, versions, serve) -> None:
    served = serve(versions)
    options = SglangBackendOptions(url=served.url, token="wrong", device="cpu")
    with pytest.raises(BackendError, match="the token is not this server's"):
        await SglangBackend(options).start(plan)
