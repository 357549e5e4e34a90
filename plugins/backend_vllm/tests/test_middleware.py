"""Aurora's routes and fields in a stock server, over real HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from aurora_core.records import NO_DRAFTER
from aurora_core.traffic.endpoint import Endpoint, RequestSettings
from aurora_core.traffic.prompts.prompt import Prompt
from plugins.backend_vllm.tests.conftest import TOKEN, publish
from plugins.backend_vllm.tests.fake_vllm import DEPTH

PROMPT = Prompt(text="How are you?", domain="chat")
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def complete(url: str, **settings: Any) -> Any:
    async with Endpoint(url) as endpoint:
        return await endpoint.complete(PROMPT, RequestSettings(**settings))


async def test_auroras_own_client_gets_tokens_and_statistics(serve, versions: Path) -> None:
    served = serve(versions, initial_version=4)
    completion = await complete(served.url, route="sql", record=False)
    (counted,) = served.engine.worker.requests
    assert len(completion.token_ids) == counted["num_output_tokens"] > 1
    assert completion.prompt_token_ids == tuple(b"user: How are you?")
    stats = completion.speculation
    assert stats is not None
    assert (stats.num_steps, stats.num_drafted) == (counted["num_steps"], counted["num_drafted"])
    assert stats.accepted_per_position == tuple(counted["accepted_per_position"])
    assert (stats.min_draft_version, stats.max_draft_version) == (4, 4)
    assert stats.acceptance_length == 1 + sum(stats.accepted_per_position) / stats.num_steps
    assert stats.ttft_s is not None and stats.decode_s is not None
    (seen,) = served.engine.worker.seen
    assert (seen["aurora_route"], seen["aurora_record"]) == ("sql", 0)
    assert seen["aurora_arrived"] > 0


async def test_a_request_without_speculation_says_that_nothing_was_drafted(
    serve, versions: Path
) -> None:
    served = serve(versions, initial_version=4)
    completion = await complete(served.url, drafter="none")
    stats = completion.speculation
    assert (stats.num_drafted, stats.max_draft_version) == (0, NO_DRAFTER)
    assert stats.num_steps == len(completion.token_ids) - 1
    assert served.engine.worker.seen[0]["aurora_drafter"] == "none"


async def test_every_version_has_prefixes_of_its_own(serve, versions: Path) -> None:
    served = serve(versions, initial_version=4)
    await complete(served.url)
    await complete(served.url, drafter="none")
    with httpx.Client(base_url=served.url) as client:
        client.post("/v1/chat/completions", json={**BODY, "cache_salt": "mine"})
    salts = [seen["cache_salt"] for seen in served.engine.worker.seen]
    assert salts == ["aurora-4", "aurora-none", "mine/aurora-4"]


async def test_prefixes_stay_shared_when_asked_to(serve, versions: Path) -> None:
    served = serve(versions, stale_draft_cache="keep")
    await complete(served.url)
    assert served.engine.worker.seen[0]["cache_salt"] is None


def test_a_foreign_client_sees_a_stock_server(serve, versions: Path) -> None:
    served = serve(versions)
    with httpx.Client(base_url=served.url) as client:
        answer = client.post("/v1/chat/completions", json=BODY)
        assert "aurora" not in answer.json()
        assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
        assert client.post("/v1/chat/completions", content=b"no JSON").status_code == 422


def test_a_whole_answer_carries_the_field_too(serve, versions: Path) -> None:
    served = serve(versions, initial_version=4)
    with httpx.Client(base_url=served.url) as client:
        answer = client.post("/v1/chat/completions", json={**BODY, "aurora": {}}).json()
    assert answer["aurora"]["num_drafted"] == DEPTH * answer["aurora"]["num_steps"] > 0
    assert answer["aurora"]["ttft_s"] is None, "the server sees the first token with the last"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"drafter": 9}, "vLLM holds one drafter"),
        ({"drafter": True}, "must be `live` or `none`"),
        ({"record": "no"}, "must be true or false"),
        ({"route": 3}, "must be text"),
        ({"color": "red"}, "`aurora.color` is not known"),
        ([], "must be an object"),
    ],
)
def test_unfit_fields_are_refused(serve, versions: Path, fields: Any, message: str) -> None:
    served = serve(versions, initial_version=4)
    with httpx.Client(base_url=served.url) as client:
        answer = client.post("/v1/chat/completions", json={**BODY, "aurora": fields or [1]})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_control_routes_need_the_token(serve, versions: Path) -> None:
    served = serve(versions)
    with httpx.Client(base_url=served.url) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert client.get("/aurora/status", headers=headers).status_code == 401
        assert client.get("/aurora/status", headers=HEADERS).status_code == 200
        assert client.get("/aurora/nothing", headers=HEADERS).status_code == 404


def test_a_swap_is_told_to_vllm_and_to_later_requests(serve, versions: Path) -> None:
    draft = publish(versions)
    served = serve(versions, stale_draft_cache="reprefill")
    body = {"version": draft.version, "checksum": draft.checksum}
    with httpx.Client(base_url=served.url, headers=HEADERS) as client:
        receipt = client.post("/aurora/swap", json=body).json()
        assert (receipt["version"], receipt["checksum"]) == (draft.version, draft.checksum)
        assert client.get("/aurora/status").json()["status"]["live_version"] == draft.version
        answer = client.post("/v1/chat/completions", json={**BODY, "aurora": {}}).json()
        assert answer["aurora"]["min_draft_version"] == draft.version
        assert served.engine.weight_version == f"draft-{draft.version}"
        assert served.engine.resets == [True]
        assert client.post("/aurora/swap", json={"version": None}).json()["version"] == -1
        assert served.engine.resets == [True], "nothing is drafted, so nothing is read again"


def test_a_refused_swap_leaves_everything_as_it_was(serve, versions: Path) -> None:
    draft = publish(versions)
    served = serve(versions, initial_version=4)
    with httpx.Client(base_url=served.url, headers=HEADERS) as client:
        body = {"version": draft.version, "checksum": "0" * 64}
        answer = client.post("/aurora/swap", json=body)
        assert answer.status_code == 409
        assert "is damaged" in answer.json()["error"]["message"]
        assert client.get("/aurora/status").json()["status"]["live_version"] == 4
        assert client.post("/aurora/swap", json={"version": "../4"}).status_code == 400
