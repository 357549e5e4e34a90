"""`/v1/chat/completions` through the official client."""

from __future__ import annotations

import pytest

from plugins.backend_torch.tests.conftest import MODEL, Served

HELLO = [{"role": "user", "content": "Hello"}]


def test_messages_go_through_the_chat_template(served: Served) -> None:
    served.say("Fine.")
    answer = served.openai().chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": "Be short."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "How"}, {"type": "text", "text": "?"}],
            },
        ],
    )
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "Fine."
    prompt = served.engine.requests[0].prompt_token_ids
    assert served.tokenizer.fast.decode(prompt, skip_special_tokens=False) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHow\n?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_a_limit_the_answer_may_fill_the_context(served: Served) -> None:
    served.say("y" * 300)
    answer = served.openai().chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.usage is not None
    assert answer.usage.total_tokens == served.engine.max_context
    assert answer.choices[0].finish_reason == "length"


def test_stream_starts_with_the_role_and_ends_with_a_reason(served: Served) -> None:
    served.say("Fine, \U0001f642!")
    chunks = list(
        served.openai().chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert deltas[0].role == "assistant"
    assert all(delta.role is None for delta in deltas[1:])
    assert "".join(delta.content or "" for delta in deltas) == "Fine, \U0001f642!"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None


def test_client_library_assembles_a_stream(served: Served) -> None:
    served.say("Fine.")
    client = served.openai()
    with client.chat.completions.stream(model=MODEL, messages=HELLO) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Fine."


@pytest.mark.parametrize("num_top", [None, 2])
def test_logprobs(served: Served, num_top: int | None) -> None:
    served.say("b\u20ac", then_end=False)
    options = {} if num_top is None else {"top_logprobs": num_top}
    answer = served.openai().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=2, logprobs=True, **options
    )
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content
    assert entries is not None
    assert (entries[0].token, entries[0].logprob, entries[0].bytes) == ("b", -1.0, [98])
    assert entries[1].bytes == [0xE2]
    tops = [(top.token, top.logprob) for top in entries[0].top_logprobs]
    assert tops == ([("c", -0.5), ("b", -1.0)] if num_top else [])


def test_choices_of_a_chat(served: Served) -> None:
    served.say("Yes")
    answer = served.openai().chat.completions.create(model=MODEL, messages=HELLO, n=3)
    assert [choice.message.content for choice in answer.choices] == ["Yes"] * 3


def test_template_variables_are_passed_and_reserved_ones_refused(served: Served) -> None:
    body = {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}}
    assert served.post("/v1/chat/completions", body).status_code == 200
    body = {"messages": HELLO, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}
    answer = served.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "chat_template_kwargs.chat_template is set by the server"
    )
