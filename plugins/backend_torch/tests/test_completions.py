"""`/v1/completions` through the official client."""

from __future__ import annotations

import hashlib
from array import array

import pytest

from plugins.backend_torch.tests.conftest import MODEL, Served

UNICODE = "na\u00efve \U0001f642 \u65e5\u672c"


def test_answer_has_text_usage_and_finish_reason(served: Served) -> None:
    served.say("Hello there")
    answer = served.openai().completions.create(model=MODEL, prompt="Say it:", max_tokens=40)
    assert answer.choices[0].text == "Hello there"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("Say it:")
    assert answer.usage.completion_tokens == len("Hello there") + 1, "the end token counts"
    assert answer.usage.total_tokens == len("Say it:") + len("Hello there") + 1


def test_max_tokens_ends_with_length_and_defaults_to_sixteen(served: Served) -> None:
    served.say("x" * 30)
    client = served.openai()
    answer = client.completions.create(model=MODEL, prompt="a", max_tokens=5)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("xxxxx", "length")
    assert client.completions.create(model=MODEL, prompt="a").choices[0].text == "x" * 16


def test_stream_holds_the_same_text_and_no_half_characters(served: Served) -> None:
    served.say(UNICODE)
    client = served.openai()
    whole = client.completions.create(model=MODEL, prompt="a", max_tokens=60)
    chunks = list(client.completions.create(model=MODEL, prompt="a", max_tokens=60, stream=True))
    texts = [chunk.choices[0].text for chunk in chunks]
    assert "".join(texts) == whole.choices[0].text == UNICODE
    assert len(texts) > 3, "it is a stream"
    assert not any("\ufffd" in text for text in texts)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


def test_bytes_that_never_become_a_character_are_not_lost(served: Served) -> None:
    euro = served.ids("\u20ac")
    served.engine.reply = lambda request: [*served.ids("a"), *euro[:2]]
    answer = served.completion(max_tokens=3).json()
    assert answer["choices"][0]["text"] == "a\ufffd"


def test_several_prompts_with_several_choices_keep_their_order(served: Served) -> None:
    answer = served.openai().completions.create(
        model=MODEL, prompt=["one", "two"], n=2, max_tokens=8
    )
    assert [choice.text for choice in answer.choices] == ["one", "one", "two", "two"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 16)


def test_streamed_choices_can_be_told_apart(served: Served) -> None:
    stream = served.openai().completions.create(
        model=MODEL, prompt=["one", "two"], max_tokens=8, stream=True
    )
    texts = {0: "", 1: ""}
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "one", 1: "two"}


def test_seed_differs_between_choices_and_repeats_between_requests(served: Served) -> None:
    for _ in range(2):
        served.completion(seed=7, n=2, temperature=0.5)
    seeds = [request.sampling.seed for request in served.engine.requests]
    assert seeds == [7, 8, 7, 8]


def test_token_ids_are_taken_and_given_back(served: Served) -> None:
    ids = served.ids("abc")
    answer = served.completion(prompt=ids, max_tokens=9, return_token_ids=True).json()
    end = sorted(served.tokenizer.eos_token_ids)
    assert answer["prompt_token_ids"] == ids
    assert answer["choices"][0]["token_ids"] == ids + end
    assert answer["choices"][0]["text"] == "abc", "special tokens are not shown"


def test_streamed_token_ids_add_up(served: Served) -> None:
    body = {"model": MODEL, "prompt": "abc", "return_token_ids": True}
    stream = served.openai().completions.with_raw_response.create(
        model=MODEL, prompt="abc", stream=True, extra_body=body
    )
    chunks = list(stream.parse())
    ids = [token_id for chunk in chunks for token_id in chunk.choices[0].token_ids]
    assert ids == served.ids("abc") + sorted(served.tokenizer.eos_token_ids)
    assert chunks[0].prompt_token_ids == served.ids("abc")
    assert not hasattr(chunks[1], "prompt_token_ids")


def test_special_tokens_are_shown_on_request(served: Served) -> None:
    answer = served.completion(skip_special_tokens=False).json()
    assert answer["choices"][0]["text"] == "hi<|im_end|>"


def test_ignored_end_token_does_not_end(served: Served) -> None:
    end = sorted(served.tokenizer.eos_token_ids)
    served.engine.reply = lambda request: served.ids("a") + end + served.ids("b" * 20)
    answer = served.completion(ignore_eos=True, max_tokens=6).json()
    assert answer["choices"][0]["text"] == "abbbb"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_stop_token_ends_the_answer(served: Served) -> None:
    served.say("abcd")
    [stop] = served.ids("c")
    answer = served.completion(stop_token_ids=[stop]).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["text"] == "abc", "a stop token that is text is shown"


def test_logprobs_list_chosen_and_likely_tokens(served: Served) -> None:
    served.say("bc")
    answer = served.openai().completions.create(model=MODEL, prompt="a", max_tokens=2, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["b", "c"]
    assert logprobs.token_logprobs == [-1.0, -1.0]
    assert logprobs.top_logprobs == [{"b": -1.0, "c": -0.5}, {"c": -1.0, "d": -0.5}]
    assert logprobs.text_offset == [0, 1]


def test_logprobs_of_partial_characters_name_their_bytes(served: Served) -> None:
    served.say("\u20acx", then_end=False)
    stream = served.openai().completions.create(
        model=MODEL, prompt="a", max_tokens=4, logprobs=0, stream=True
    )
    tokens, offsets = [], []
    for chunk in stream:
        logprobs = chunk.choices[0].logprobs
        assert logprobs is not None and logprobs.tokens is not None
        tokens += logprobs.tokens
        offsets += logprobs.text_offset or []
    assert tokens == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "x"]
    assert offsets == [0, 1, 1, 1]


def test_aurora_statistics_come_with_the_answer(served: Served) -> None:
    answer = served.completion(max_tokens=8, prompt="abcdefgh").json()
    aurora = answer["aurora"]
    assert aurora["num_steps"] == 4
    assert aurora["accepted_per_position"] == [4, 0]
    assert aurora["acceptance_length"] == 2.0
    assert aurora["otps"] == (8 - 1) / 0.5
    assert aurora["request_id"] == served.engine.requests[0].request_id
    assert answer["id"] == f"cmpl-{aurora['request_id']}"


@pytest.mark.parametrize("with_usage", [False, True])
def test_aurora_statistics_end_a_stream(served: Served, with_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if with_usage else {}
    chunks = list(
        served.openai().completions.create(model=MODEL, prompt="abc", stream=True, **options)
    )
    assert [hasattr(chunk, "aurora") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].aurora["num_steps"] == 2
    if with_usage:
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 4
        assert all(chunk.usage is None for chunk in chunks[:-1])


def test_several_choices_carry_their_own_statistics(served: Served) -> None:
    answer = served.completion(n=2).json()
    assert "aurora" not in answer
    ids = [choice["aurora"]["request_id"] for choice in answer["choices"]]
    assert ids == [request.request_id for request in served.engine.requests]


def test_request_reaches_the_engine_as_sent(served: Served) -> None:
    served.engine.resident.add(3)
    headers = {"X-Aurora-Tenant": "acme", "X-Aurora-Route": "r1", "X-Aurora-Record": "0"}
    served.post(
        "/v1/completions",
        {
            "prompt": "hi",
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 20,
            "max_tokens": 3,
            "aurora": {"drafter": 3, "route": "r2"},
        },
        headers=headers,
    )
    [request] = served.engine.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 20)
    assert sampling.rule == "point_mass"
    assert (request.tenant, request.route, request.record) == ("acme", "r2", False)
    assert request.drafter == 3
    assert request.max_tokens == 3
    ids = array("q", request.prompt_token_ids).tobytes()
    assert request.request_key == hashlib.sha256(ids).hexdigest()[:16]


def test_greedy_requests_name_the_greedy_rule(served: Served) -> None:
    served.completion(temperature=0)
    assert served.engine.requests[0].sampling.rule == "greedy"
    assert served.engine.requests[0].record
    assert served.engine.requests[0].drafter == "live"
