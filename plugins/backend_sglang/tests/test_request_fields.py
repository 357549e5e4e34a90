"""Aurora's field of a request on its way into a stock SGLang."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import fastapi
import httpx
import pytest

from aurora_backend_sglang.engine.request_fields import RequestFields, UnfitField, translate

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

    app.add_middleware(RequestFields)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


async def test_wishes_reach_the_scheduler_among_the_custom_parameters(client) -> None:
    wishes = {"record": False, "route": "sql", "drafter": "live"}
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


async def test_a_request_without_drafts_is_refused_and_not_served_with_them(client) -> None:
    answer = await client.post(URL, json={"aurora": {"drafter": "none"}})
    assert answer.status_code == 400
    assert "SGLang drafts for all requests or for none" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("live", "`aurora` must be an object"),
        ({"drafter": 3}, "`aurora.drafter` must be `live`"),
        ({"record": 1}, "`aurora.record` must be true or false"),
        ({"route": "x" * 129}, "`aurora.route` must be text of at most 128"),
        ({"tenent": "a"}, "`aurora.tenent` is not known"),
    ],
)
def test_unfit_fields_are_told(fields: Any, sentence: str) -> None:
    with pytest.raises(UnfitField, match=sentence):
        translate({"aurora": fields})
