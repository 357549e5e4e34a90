"""Stop strings end an answer before themselves, wherever tokens and steps fall."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_backend_torch.detokenizer import StopStrings
from plugins.backend_torch.tests.conftest import MODEL, Served


@given(
    pieces=st.lists(st.text("ab\n", max_size=4), max_size=12),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_pieces_give_what_the_whole_text_gives(pieces: list[str], stops: list[str]) -> None:
    finder = StopStrings(stops)
    shown, read = "", ""
    for piece in pieces:
        read += piece
        text, found = finder.feed(piece)
        shown += text
        ends = [read.find(stop) for stop in stops if stop in read]
        assert found == bool(ends)
        if found:
            assert shown == read[: min(ends)]
            return
        assert read.startswith(shown)
        held = read[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops), "held back for nothing"
    assert shown + finder.finish() == read


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("END", "one two "),
        (["zzz", "o E"], "one tw"),
        ("one", ""),
        ("missing", "one two END three"),
        ("three!", "one two END three"),
    ],
)
def test_answer_ends_before_the_stop_string(
    served: Served, stop: str | list[str], text: str, is_streamed: bool
) -> None:
    served.say("one two END three")
    client = served.openai()
    if is_streamed:
        chunks = list(
            client.completions.create(
                model=MODEL, prompt="a", max_tokens=30, stop=stop, stream=True
            )
        )
        got = "".join(chunk.choices[0].text for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        answer = client.completions.create(model=MODEL, prompt="a", max_tokens=30, stop=stop)
        got, reason = answer.choices[0].text, answer.choices[0].finish_reason
    assert got == text
    assert reason == "stop"


def test_engine_keeps_the_tokens_up_to_the_stop_string(served: Served) -> None:
    served.say("one two END three")
    answer = served.completion(stop="END", max_tokens=30, return_token_ids=True, logprobs=0).json()
    num_kept = len("one two END")
    [(request_id, reason, num_output_tokens)] = served.engine.ended
    assert request_id == served.engine.requests[0].request_id
    assert (reason, num_output_tokens) == ("stop", num_kept)
    choice = answer["choices"][0]
    assert choice["token_ids"] == served.ids("one two END")
    assert len(choice["logprobs"]["tokens"]) == num_kept
    assert answer["usage"]["completion_tokens"] == num_kept
    assert answer["aurora"]["request_id"] == request_id


def test_text_held_back_is_shown_when_the_answer_ends(served: Served) -> None:
    served.say("wait EN")
    chunks = list(
        served.openai().completions.create(model=MODEL, prompt="a", stop="END", stream=True)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == "wait EN"


def test_stop_string_within_the_last_step_wins_over_the_length(served: Served) -> None:
    served.say("abcdef")
    answer = served.completion(stop="d", max_tokens=4).json()
    assert answer["choices"][0]["text"] == "abc"
    assert answer["choices"][0]["finish_reason"] == "stop"
