"""Requests that are refused, each with its status and its sentence in OpenAI's shape."""

from __future__ import annotations

import json
import threading

import openai
import pytest

from plugins.backend_torch.tests.conftest import MODEL, Served, wait_for

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": "none", "response_format": {"type": "text"}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "stop": None},
        {"user": "u", "metadata": {"a": "b"}, "store": False, "parallel_tool_calls": True},
        {"temperature": None, "top_p": None, "n": None, "seed": None, "stream": None},
    ],
)
def test_parameters_that_ask_for_nothing_are_accepted(
    served: Served, fields: dict[str, object]
) -> None:
    assert served.post("/v1/chat/completions", {**CHAT, **fields}).status_code == 200


def test_body_that_is_not_declared_json_is_a_400(served: Served) -> None:
    answer = served.http.post("/v1/completions", content=b'{"prompt": "x"}')
    assert answer.status_code == 400
    assert "'Content-Type: application/json'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_large_body_is_a_413(served: Served, is_chunked: bool) -> None:
    body = json.dumps({"prompt": "x" * 20_000}).encode()
    answer = served.http.post(
        "/v1/completions",
        content=iter([body[:9000], body[9000:]]) if is_chunked else body,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == "the body is larger than 20000 bytes"
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_unknown_model_is_a_404_that_names_the_one_served(served: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-5' is not served here; available: 'tiny'"):
        served.openai().completions.create(model="gpt-5", prompt="x")
    assert served.openai().models.retrieve(MODEL).id == MODEL
    assert [model.id for model in served.openai().models.list()] == [MODEL]


def test_unknown_path_and_method_answer_in_the_same_shape(served: Served) -> None:
    for path, status, sentence in (
        ("/v2", 404, "there is no route '/v2' here; GET /openapi.json lists those there are"),
        ("/v1/completions", 405, "the route '/v1/completions' does not take GET; GET /open"),
    ):
        answer = served.http.get(path)
        assert answer.status_code == status
        assert answer.json()["error"]["message"].startswith(sentence)


def test_a_body_that_is_no_object_is_refused_in_plain_words(served: Served) -> None:
    answer = served.http.post("/v1/completions", json=[1])
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        400,
        "the body must be a JSON object, in braces",
    )


def test_full_queue_is_a_429_with_retry_after(served: Served) -> None:
    served.engine.may_step.clear()
    threads = [threading.Thread(target=served.completion, kwargs={"n": 2}) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(served.engine.requests) == 4)
    with pytest.raises(openai.RateLimitError, match="the server is busy; try again in 3 s") as got:
        served.openai().completions.create(model=MODEL, prompt="x")
    assert got.value.response.headers["Retry-After"] == "3"
    served.engine.may_step.set()
    for thread in threads:
        thread.join()
    assert served.completion().status_code == 200, "room again"


def test_request_that_fits_only_in_part_leaves_nothing_behind(served: Served) -> None:
    served.engine.may_step.clear()
    thread = threading.Thread(target=served.completion, kwargs={"n": 3})
    thread.start()
    wait_for(lambda: len(served.engine.requests) == 3)
    assert served.completion(n=2).status_code == 429
    wait_for(lambda: served.engine.num_running + served.engine.num_waiting == 3)
    served.engine.may_step.set()
    thread.join()


@pytest.mark.parametrize("served", [{"request_timeout_s": 0.2}], indirect=True)
def test_request_that_takes_too_long_is_a_504_and_frees_its_slot(served: Served) -> None:
    served.engine.may_step.clear()
    answer = served.completion()
    assert answer.status_code == 504
    assert answer.json()["error"]["message"] == "the request was not complete within 0.2 s"
    with pytest.raises(openai.APIError, match="not complete within") as got:
        list(served.openai().completions.create(model=MODEL, prompt="x", stream=True))
    assert not isinstance(got.value, openai.APIStatusError), "the stream had begun"
    # The client hears of it a moment before the engine does.
    wait_for(lambda: len(served.engine.ended) == 2)
    assert [reason for _, reason, _ in served.engine.ended] == ["abort", "abort"]
    wait_for(lambda: served.engine.num_running + served.engine.num_waiting == 0)
