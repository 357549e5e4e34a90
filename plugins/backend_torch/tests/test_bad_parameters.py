"""Malformed bodies and absurd parameters, each with its sentence in OpenAI's shape."""

from __future__ import annotations

import pytest

from plugins.backend_torch.tests.conftest import Served

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": -0.1}, "temperature", "temperature: Input should be greater than or"),
        ({"temperature": 2.5}, "temperature", "temperature: Input should be less than or"),
        ({"temperature": "hot"}, "temperature", "temperature: Input should be a valid number"),
        ({"temperature": True}, "temperature", "temperature: Input should be a valid number"),
        ({"top_p": 0}, "top_p", "top_p: Input should be greater than 0"),
        ({"top_p": 1.1}, "top_p", "top_p: Input should be less than or equal to 1"),
        ({"top_k": -2}, "top_k", "top_k: Input should be greater than or equal to -1"),
        ({"top_k": 1.5}, "top_k", "top_k: Input should be a valid integer"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: Input should be greater than or equal to 1"),
        ({"max_tokens": 1e9}, "max_tokens", "max_tokens: Input should be a valid integer"),
        ({"n": 0}, "n", "n: Input should be greater than or equal to 1"),
        ({"n": 5}, "n", "the request asks for 5 sequences at once; this server holds at most 4"),
        ({"seed": 2**63}, "seed", f"seed: Input should be less than {2**63}"),
        ({"logprobs": 21}, "logprobs", "logprobs: Input should be less than or equal to 20"),
        ({"stop": [1]}, "stop", "stop: must be a string or a list of strings"),
        ({"stop": ""}, "stop", "stop: strings must have 1 to 256 characters"),
        ({"stop": ["x"] * 17}, "stop", "stop: holds more than 16 strings"),
        ({"stop_token_ids": [320]}, "stop_token_ids", "stop_token_ids: 320 is not a token id"),
        ({"stream_options": {}}, "stream_options", "stream_options: only valid with stream=true"),
        ({"echo": True}, "echo", "'echo' is not supported by this server; leave it out"),
        ({"suffix": "x"}, "suffix", "'suffix' is not supported by this server; leave it out"),
        ({"best_of": 2}, "best_of", "'best_of' is not supported by this server; leave it out"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "'logit_bias' is not supported"),
        ({"presence_penalty": 0.1}, "presence_penalty", "'presence_penalty' is not supported"),
        ({"guided_json": {}}, "guided_json", "'guided_json' is not supported"),
        ({"tempreature": 1}, "tempreature", "unknown parameter 'tempreature'"),
        ({"aurora": {"drafted": 1}}, "aurora.drafted", "unknown parameter 'aurora.drafted'"),
        ({"aurora": {"drafter": "best"}}, "aurora.drafter", "aurora.drafter: must be 'live'"),
        ({"aurora": {"drafter": 9}}, None, "version 9 is not resident; load it first"),
        ({"aurora": {"tenant": "x" * 129}}, "aurora.tenant", "at most 128 characters"),
        ({"aurora": {"tenant": "a\nb"}}, None, "holds a character that cannot be printed"),
        ({"prompt": ""}, "prompt", "prompt: must not be empty"),
        ({"prompt": []}, "prompt", "prompt: must not be empty"),
        ({"prompt": None}, "prompt", "prompt: must be a string, a list of strings"),
        ({"prompt": ["a", 1]}, "prompt", "prompt: must be a string, a list of strings"),
        ({"prompt": [-1]}, "prompt", "prompt: token ids must be in 0..319"),
        ({"prompt": [320]}, "prompt", "prompt: token ids must be in 0..319"),
        ({"prompt": [True]}, "prompt", "prompt: must be a string, a list of strings"),
        ({"prompt": "x" * 256}, "prompt", "prompt: 256 tokens leave no room in the context"),
        ({"max_tokens": 255}, "max_tokens", "max_tokens: 255 after a prompt of 2 tokens is more"),
    ],
)  # fmt: skip
def test_completion_is_refused(
    served_once: Served, fields: dict[str, object], param: str | None, message: str
) -> None:
    answer = served_once.completion(**fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert served_once.engine.requests == [], "nothing reached the engine"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": None}, "messages: Input should be a valid list"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role: Input should be"),
        ({"messages": [{"role": "user"}]}, "'messages.0.content' is required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content: only parts of type 'text' are supported, not 'image_url'",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: must be a string"),
        ({"tools": [{"type": "function"}]}, "'tools' is not supported"),
        ({"response_format": {"type": "json_object"}}, "'response_format' is not supported"),
        ({"top_logprobs": 2}, "top_logprobs: only valid with logprobs=true"),
        ({"prompt": "x"}, "unknown parameter 'prompt'"),
    ],
)
def test_chat_is_refused(served_once: Served, fields: dict[str, object], message: str) -> None:
    answer = served_once.post("/v1/chat/completions", {**CHAT, **fields})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"prompt": "x"', "the body is not valid JSON"),
        (b"", "'body' is required"),
        (b"[" * 5000 + b"]" * 5000, ""),
        (b'{"prompt": "x", "temperature": NaN}', "temperature: Input should be a finite number"),
        (b'{"prompt": "x", "temperature": 1e999}', "temperature: Input should be a finite number"),
        (b'{"prompt": "\\ud800"}', "prompt: the text holds a lone surrogate"),
        (b'"text"', "the body must be a JSON object"),
        (b"\xff\xfe", ""),
    ],
)
def test_malformed_body_is_a_400(served_once: Served, body: bytes, message: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = served_once.http.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
