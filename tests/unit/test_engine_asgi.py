"""What middlewares in engines' servers share: bodies in, Aurora's field, responses changed."""

from __future__ import annotations

from typing import Any

import pytest

from aurora_core.engine_process.asgi import (
    Rewriting,
    RewritingSender,
    read_body,
    replay,
    with_length,
)
from aurora_core.engine_process.aurora_field import AuroraField, UnfitField, read_field


class Shout(Rewriting):
    def add_to_event(self, event: bytes) -> bytes:
        return event.upper() + b"data: seen\n\n"

    def add_to_body(self, body: bytes) -> bytes:
        return body.upper() + b"!"


async def sent(kind: bytes, *parts: bytes, status: int = 200) -> list[dict[str, Any]]:
    """Return what a response of some parts becomes."""
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    sender = RewritingSender(send, Shout())
    headers = [(b"content-type", kind), (b"content-length", b"999")]
    await sender({"type": "http.response.start", "status": status, "headers": headers})
    for index, part in enumerate(parts):
        more = index < len(parts) - 1
        await sender({"type": "http.response.body", "body": part, "more_body": more})
    return messages


async def receiving(*parts: bytes, gone: bool = False) -> Any:
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if gone:
        messages.append({"type": "http.disconnect"})
    else:
        messages[-1]["more_body"] = False

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    return receive


@pytest.mark.parametrize("cut", range(1, 27))
async def test_events_are_rewritten_whole_wherever_they_were_cut(cut: int) -> None:
    stream = b"data: one\n\ndata: two\n\nrest"
    start, *bodies = await sent(b"text/event-stream; charset=utf-8", stream[:cut], stream[cut:])
    assert (b"content-length", b"999") in start["headers"], "untouched"
    expected = b"DATA: ONE\n\ndata: seen\n\nDATA: TWO\n\ndata: seen\n\nrest"
    assert b"".join(body["body"] for body in bodies) == expected
    assert [body["more_body"] for body in bodies] == [True, False]


async def test_a_whole_body_is_rewritten_at_its_end_with_its_new_length() -> None:
    start, body = await sent(b"application/json", b"a", b"bc")
    assert body["body"] == b"ABC!"
    assert start["headers"] == [(b"content-type", b"application/json"), (b"content-length", b"4")]


async def test_an_error_passes_as_it_is() -> None:
    _, body = await sent(b"application/json", b"no", status=400)
    assert body["body"] == b"no"


async def test_a_body_is_read_from_its_parts_and_given_again_once() -> None:
    receive = await receiving(b"ab", b"c")
    assert await read_body(receive) == b"abc"
    again = replay(b"xyz", receive)
    assert await read_body(again) == b"xyz"
    assert (await again())["type"] == "http.disconnect"
    assert await read_body(await receiving(b"ab", gone=True)) == b"ab"


def test_a_length_replaces_the_one_before() -> None:
    headers = with_length([(b"Content-Length", b"1"), (b"x", b"y")], 7)
    assert headers == [(b"x", b"y"), (b"content-length", b"7")]


def test_wishes_have_their_defaults() -> None:
    assert read_field(None) == read_field({}) == AuroraField()
    assert read_field({"drafter": None}).drafter == "live"
    wishes = {"drafter": 3, "record": False, "tenant": "a", "route": "b"}
    assert read_field(wishes) == AuroraField(drafter=3, record=False, tenant="a", route="b")


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ([], "`aurora` must be an object"),
        ({"tenent": "a"}, "`aurora.tenent` is not known"),
        ({"record": 1}, "`aurora.record` must be true or false"),
        ({"route": 3}, "`aurora.route` must be text of at most 128 characters"),
        ({"tenant": "x" * 129}, "`aurora.tenant` must be text of at most 128 characters"),
    ],
)
def test_unfit_wishes_are_refused(field: Any, sentence: str) -> None:
    with pytest.raises(UnfitField, match=sentence):
        read_field(field)
