"""One request to an OpenAI-compatible server: what comes back, and every way to fail."""

from __future__ import annotations

import socket

import pytest

from aurora_core.errors import BackendError, ConfigError
from aurora_core.traffic.completion import RequestFailed, StreamedAnswer
from aurora_core.traffic.endpoint import Endpoint, RequestSettings, _retry_after_s
from aurora_core.traffic.prompts import Prompt

PROMPT = Prompt("math", "What is 2 + 2?")
SHORT = RequestSettings(max_tokens=8)


async def complete(server, settings=SHORT, **options):
    async with Endpoint(server.url, **options) as endpoint:
        return await endpoint.complete(PROMPT, settings)


async def test_an_answer_carries_text_tokens_and_the_engines_own_statistics(server):
    completion = await complete(server)
    assert completion.text == bytes(completion.token_ids).decode()
    assert completion.num_output_tokens == len(completion.token_ids) == 8
    assert completion.num_prompt_tokens == len(PROMPT.text)
    assert completion.finish_reason == "length"
    assert completion.speculation.accepted_per_position == (4, 0, 0)
    assert (completion.speculation.min_draft_version, completion.num_retries) == (4, 0)
    assert (completion.ttft_s, completion.decode_s, completion.otps) == (0.25, 0.5, 14.0)
    assert completion.latency_s > 0


async def test_a_server_without_extensions_is_timed_by_its_stream(server):
    server.extensions = False
    completion = await complete(server)
    assert completion.speculation is None
    assert completion.token_ids is None
    assert completion.num_output_tokens == 8
    assert 0 < completion.ttft_s < completion.latency_s
    assert completion.decode_s > 0
    assert completion.otps == pytest.approx(7 / completion.decode_s)
    assert 0 < completion.longest_gap_s <= completion.decode_s


async def test_tokens_are_counted_by_chunks_without_usage(server):
    server.extensions = server.send_usage = False
    assert (await complete(server)).num_output_tokens == 8


async def test_a_server_that_refuses_extensions_is_asked_without_from_then_on(server):
    server.extensions, server.refuse_extensions = False, True
    async with Endpoint(server.url) as endpoint:
        await endpoint.complete(PROMPT, SHORT)
        await endpoint.complete(PROMPT, SHORT)
    assert ["return_token_ids" in body for body in server.bodies] == [True, False, False]


async def test_a_chosen_drafter_is_never_silently_dropped(server):
    server.refuse_extensions = True
    with pytest.raises(RequestFailed, match=r"^status 400: unknown field"):
        await complete(server, RequestSettings(drafter="none"))
    assert len(server.bodies) == 1


async def test_settings_reach_the_server(server):
    settings = RequestSettings(
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        drafter=7,
        record=False,
        route="sql",
        num_logprobs=2,
    )
    completion = await complete(server, settings)
    body = server.bodies[0]
    assert body["model"] == "fake"
    assert body["messages"] == [{"role": "user", "content": PROMPT.text}]
    assert body["stream"] and body["stream_options"] == {"include_usage": True}
    assert (body["max_tokens"], body["temperature"], body["top_p"], body["seed"]) == (
        5,
        0.5,
        0.9,
        3,
    )
    assert body["aurora"] == {"drafter": 7, "record": False, "route": "sql"}
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
    assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)


async def test_busy_server_is_asked_again_after_the_time_it_names(server):
    server.plan = ["429", "429"]
    completion = await complete(server)
    assert completion.num_retries == 2
    assert len(server.bodies) == 3


async def test_a_server_that_stays_busy_is_given_up(server):
    server.plan = ["429"] * 3
    with pytest.raises(RequestFailed, match=r"^busy: 429 after 2 retries"):
        await complete(server, max_retries=2)


def test_retry_after_is_read_as_seconds_or_as_a_date():
    assert _retry_after_s("1.5") == 1.5
    assert _retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert _retry_after_s("Fri, 21 Oct 2950 07:28:00 GMT") > 1e9
    assert _retry_after_s("soon") is None
    assert _retry_after_s(None) is None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("500", "^status 500: out of cheese"),
        ("detail", "^status 404: .*no such route"),
        ("plain", "^malformed: not an event stream"),
        ("malformed", "^malformed: not JSON: '{broken'"),
        ("wrong shape", "^malformed: not a completion chunk: {'choices': "),
        ("error event", "^server error: the engine died"),
        ("disconnect", "^disconnected: "),
        ("early end", "^disconnected: the stream ended early, after 3 chunks"),
    ],
)
async def test_every_other_failure_is_named_and_not_retried(server, fault, message):
    server.plan = [fault]
    with pytest.raises(RequestFailed, match=message):
        await complete(server)
    assert len(server.bodies) == 1


async def test_a_slow_answer_times_out(server):
    server.plan = ["slow"]
    with pytest.raises(RequestFailed, match=r"^timeout: no answer within 0\.2 s"):
        await complete(server, timeout_s=0.2)


async def test_url_may_end_in_v1(server):
    async with Endpoint(server.url + "/v1/") as endpoint:
        assert endpoint.url == server.url


async def test_no_server_is_one_sentence():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(BackendError, match=rf"^no server answers at {url}: .*correct the URL$"):
            async with Endpoint(url):
                pass


async def test_a_server_without_models_or_key_is_one_sentence(server):
    server.plan = ["no models"]
    with pytest.raises(BackendError, match="does not list its models as an OpenAI-compatible"):
        async with Endpoint(server.url):
            pass
    server.plan = ["wants key"]
    with pytest.raises(BackendError, match="wants an API key; set AURORA_API_KEY"):
        async with Endpoint(server.url):
            pass
    async with Endpoint(server.url, model="mine") as endpoint:
        assert endpoint.model == "mine"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", ""])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ConfigError, match="is not the URL of a server, such as http"):
        Endpoint(url)


def chunk(content="", **choice):
    return {"choices": [{"delta": {"content": content}, **choice}]}


def test_times_follow_from_the_arrival_of_chunks():
    answer = StreamedAnswer(sent=100.0)
    answer.add({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, 100.1)
    answer.add(chunk("a"), 100.5)
    answer.add(chunk("b"), 101.0)
    answer.add(chunk("c"), 102.5)
    answer.add(chunk(finish_reason="stop"), 103.0)
    answer.add({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 5}}, 103.0)
    completion = answer.complete(103.5)
    assert completion.ttft_s == pytest.approx(0.5)
    assert completion.decode_s == pytest.approx(2.0)
    assert completion.otps == pytest.approx(4 / 2.0)
    assert completion.longest_gap_s == pytest.approx(1.5)
    assert completion.latency_s == pytest.approx(3.5)


def test_tokens_of_the_first_chunk_do_not_count_as_decoded_later():
    answer = StreamedAnswer(sent=0.0)
    answer.add(chunk("ab", token_ids=[1, 2]), 1.0)
    answer.add(chunk("cde", token_ids=[3, 4, 5], finish_reason="stop"), 2.0)
    assert answer.complete(2.0).otps == pytest.approx(3.0)


def test_an_answer_in_one_chunk_has_no_speed():
    answer = StreamedAnswer(sent=0.0)
    answer.add(chunk("abc", token_ids=[1, 2, 3], finish_reason="stop"), 1.0)
    completion = answer.complete(1.0)
    assert (completion.num_output_tokens, completion.otps) == (3, None)


def test_a_foreign_aurora_field_is_no_statistics():
    answer = StreamedAnswer(sent=0.0)
    answer.add({"aurora": "borealis"} | chunk("a", finish_reason="stop"), 1.0)
    assert answer.complete(1.0).speculation is None


def test_an_aborted_answer_is_a_failure():
    answer = StreamedAnswer(sent=0.0)
    answer.add(chunk("a", finish_reason="abort"), 1.0)
    with pytest.raises(RequestFailed, match=r"^aborted: the server gave up"):
        answer.complete(1.0)
