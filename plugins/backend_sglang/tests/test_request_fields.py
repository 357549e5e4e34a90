"""Aurora's field of a request on its way into a stock SGLang."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import fastapi
import httpx
import pytest

from aurora_backend_sglang.engine.answer_statistics import AnswerStatistics
from aurora_backend_sglang.engine.request_fields import (
    RequestFields,
    UnfitField,
    refusal_of_plain,
    translate,
)

URL = "/v1/chat/completions"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A server that answers with the body that it got, behind the middleware."""
    app = fastapi.FastAPI()

    @app.post(URL)
    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        return body

    @app.post("/generate")
    async def generate(body: dict[str, Any]) -> dict[str, Any]:
        return body

    app.add_middleware(RequestFields, statistics=AnswerStatistics())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


async def test_wishes_reach_the_scheduler_among_the_custom_parameters(client) -> None:
    wishes = {"record": False, "route": "sql"}
    body = {"model": "tiny", "custom_params": {"own": 1}, "aurora": wishes}
    answer = (await client.post(URL, json=body)).json()
    assert answer == {
        "model": "tiny",
        "custom_params": {"own": 1, "aurora": {"record": False, "route": "sql"}},
    }


async def test_what_has_no_field_of_aurora_passes_untouched(client) -> None:
    body = {"model": "tiny", "custom_params": {"own": 1}}
    assert (await client.post(URL, json=body)).json() == body
    assert (await client.post("/generate", json={"aurora": 1})).json() == {"aurora": 1}
    assert (await client.post(URL, content=b"{not json")).status_code == 422


async def test_a_request_without_drafts_is_told_to_the_scheduler(client) -> None:
    answer = (await client.post(URL, json={"aurora": {"drafter": "none"}})).json()
    assert answer == {"custom_params": {"aurora": {"drafter": "none"}}}


async def test_what_does_not_fit_is_answered_with_a_sentence(client) -> None:
    answer = await client.post(URL, json={"aurora": {"drafter": 7}})
    assert answer.status_code == 400
    assert "SGLang holds one drafter" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("policy", "drafts_chains", "sentence"),
    [
        ("allow", True, ""),
        ("ignore", True, ""),
        ("ignore", False, ""),
        ("allow", False, "no step without drafts where it drafts trees"),
        ("refuse", False, "no step without drafts where it drafts trees"),
        ("refuse", True, "would slow down those beside it, and this server takes none"),
    ],
)
def test_whoever_asks_for_no_drafts_is_told_if_it_gets_some(
    policy: str, drafts_chains: bool, sentence: str
) -> None:
    refusal = refusal_of_plain(policy, drafts_chains=drafts_chains)
    assert sentence in refusal and bool(sentence) == bool(refusal)


@pytest.mark.parametrize(
    "body",
    [
        {"aurora": {"drafter": "none"}},
        {"custom_params": {"aurora": {"drafter": "none"}}},
        {"sampling_params": {"custom_params": {"aurora": {"drafter": "none"}}}},
        {"sampling_params": [{}, {"custom_params": {"aurora": {"drafter": "none"}}}]},
    ],
)
async def test_no_place_of_the_wish_goes_round_a_refusal(body: dict[str, Any]) -> None:
    async def app(*_: Any) -> None:
        pytest.fail("the request went through")

    server = RequestFields(app, statistics=AnswerStatistics(), refusal="not here")
    transport = httpx.ASGITransport(app=server)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        url = "/generate" if "sampling_params" in body else URL
        answer = await client.post(url, json=body)
        assert (answer.status_code, answer.json()["message"]) == (400, "not here")


async def test_sglangs_own_route_is_held_to_the_same(client) -> None:
    wishes = {"custom_params": {"aurora": {"drafter": 7}}}
    for parameters in (wishes, [{}, wishes]):
        answer = await client.post("/generate", json={"sampling_params": parameters})
        assert answer.status_code == 400
    body = {"sampling_params": {"custom_params": {"aurora": {"drafter": "none"}}}}
    assert (await client.post("/generate", json=body)).json() == body


async def test_token_ids_of_a_streamed_chat_are_asked_for_in_sglangs_words(client) -> None:
    """SGLang refuses `return_token_ids` there, and takes it everywhere else."""
    asked = {"return_output_ids_in_sglext": True, "return_input_ids_in_sglext": True}
    body = {"stream": True, "return_token_ids": True}
    assert (await client.post(URL, json=body)).json() == {"stream": True, **asked}
    whole = {"stream": False, "return_token_ids": True}
    assert (await client.post(URL, json=whole)).json() == whole
    assert translate(body, chat=False) == body


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("live", "`aurora` must be an object"),
        ({"drafter": 3}, "`aurora.drafter` must be `live` or `none`"),
        ({"record": 1}, "`aurora.record` must be true or false"),
        ({"route": "x" * 129}, "`aurora.route` must be text of at most 128"),
        ({"tenent": "a"}, "`aurora.tenent` is not known"),
    ],
)
def test_unfit_fields_are_told(fields: Any, sentence: str) -> None:
    with pytest.raises(UnfitField, match=sentence):
        translate({"aurora": fields}, chat=True)
