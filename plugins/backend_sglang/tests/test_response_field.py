"""What a client of a stock SGLang finds in an answer: statistics, and token ids in a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import fastapi
import httpx
import pytest
from fastapi.responses import StreamingResponse

from aurora_backend_sglang.engine.answer_statistics import AnswerStatistics
from aurora_backend_sglang.engine.request_fields import RequestFields
from aurora_core.engine_process.aurora_field import describe_answer
from aurora_core.records import RequestStats
from aurora_core.traffic.completion import StreamedAnswer

URL = "/v1/chat/completions"
STATS = RequestStats(
    sequence=4,
    request_id="one",
    finished=9.0,
    num_prompt_tokens=3,
    num_output_tokens=7,
    num_steps=4,
    num_speculative_steps=2,
    num_drafted=6,
    accepted_per_position=(2, 0, 0),
    min_draft_version=-1,
    max_draft_version=5,
    ttft_s=0.25,
    decode_s=1.5,
    finish_reason="length",
)


def chunk(**values: Any) -> dict[str, Any]:
    return {"id": "one", "object": "chat.completion.chunk", "choices": [], **values}


def choice(finish_reason: str | None = None, **delta: str) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "finish_reason": finish_reason}]


class Server:
    """Answers as SGLang does, byte by byte if it must, behind the middleware."""

    def __init__(self) -> None:
        self.statistics = AnswerStatistics()
        self.piece = 1 << 16
        app = fastapi.FastAPI()

        @app.post(URL)
        async def chat(body: dict[str, Any]) -> Any:
            self.statistics.remember({"id": "one", "aurora": [describe_answer(STATS)]})
            if not body.get("stream"):
                return {"id": "one", "choices": [{"message": {"content": "ab"}}]}
            return StreamingResponse(self.stream(body), media_type="text/event-stream")

        app.add_middleware(RequestFields, statistics=self.statistics)
        transport = httpx.ASGITransport(app=app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://server")

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        events = [
            chunk(choices=choice(content="a")),
            chunk(choices=choice(content="b")),
            chunk(choices=choice("length")),
        ]
        if body.get("return_output_ids_in_sglext"):
            events.append(chunk(sglext={"output_ids": [[97, 98]], "input_ids": [1, 2, 3]}))
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append(chunk(usage={"prompt_tokens": 3, "completion_tokens": 2}))
        text = "".join(f"data: {json.dumps(one)}\n\n" for one in events) + "data: [DONE]\n\n"
        for start in range(0, len(text), self.piece):
            yield text[start : start + self.piece].encode()

    async def chunks(self, **body: Any) -> list[Any]:
        answer = await self.client.post(URL, json={"stream": True, **body})
        events = answer.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [json.loads(event[6:]) for event in events[:-2]]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server of this process."""
    one = Server()
    yield one
    await one.client.aclose()


@pytest.mark.parametrize("piece", [1 << 16, 7])
async def test_a_driver_reads_the_tokens_and_statistics_of_a_stream(server, piece: int) -> None:
    server.piece = piece
    wishes = {"stream_options": {"include_usage": True}, "return_token_ids": True}
    answer = StreamedAnswer(0.0)
    for one in await server.chunks(**wishes):
        answer.add(one, 1.0)
    completion = answer.complete(2.0)
    assert completion.text == "ab"
    assert completion.token_ids == (97, 98)
    assert completion.prompt_token_ids == (1, 2, 3)
    assert completion.speculation is not None
    assert completion.speculation.request_id == "one"
    assert completion.speculation.accepted_per_position == (2, 0, 0)
    assert completion.speculation.acceptance_length == 1.5
    assert completion.speculation.num_speculative_steps == 2
    assert completion.speculation.max_draft_version == 5
    assert (completion.ttft_s, completion.decode_s, completion.otps) == (0.25, 1.5, 4.0)


async def test_without_usage_the_statistics_are_where_the_stream_finishes(server) -> None:
    chunks = await server.chunks(aurora={"route": "sql"})
    assert [one.get("aurora", {}).get("num_steps") for one in chunks] == [None, None, 4]
    assert server.statistics.take("one") is None, "they are given once"


async def test_a_whole_answer_has_the_field_and_a_fitting_length(server) -> None:
    answer = await server.client.post(URL, json={"aurora": {}})
    assert answer.json()["aurora"] == describe_answer(STATS)
    assert int(answer.headers["content-length"]) == len(answer.content)


async def test_nothing_is_added_to_what_nobody_asked_for(server) -> None:
    assert all("aurora" not in one for one in await server.chunks())
    own = await server.chunks(return_output_ids_in_sglext=True)
    assert own[-1]["sglext"]["output_ids"] == [[97, 98]]


async def test_what_sglang_asked_in_its_own_words_stays_in_them(server) -> None:
    own = await server.chunks(return_output_ids_in_sglext=True, aurora={})
    assert own[-1]["sglext"]["output_ids"] == [[97, 98]]


def test_an_answer_of_one_token_has_no_speed() -> None:
    short = replace(STATS, num_output_tokens=1, num_steps=0, accepted_per_position=(), decode_s=0.0)
    assert describe_answer(short)["otps"] is None
    assert describe_answer(short)["acceptance_length"] == 1.0


def test_statistics_that_nobody_takes_are_forgotten() -> None:
    statistics = AnswerStatistics()
    for number in range(4097):
        statistics.remember({"id": f"r{number}", "aurora": [{"num_steps": number}]})
    statistics.remember({"id": "running", "aurora": []})
    assert statistics.take("r0") is None
    assert statistics.take("r1") == {"num_steps": 1}
    assert statistics.take("running") is None
