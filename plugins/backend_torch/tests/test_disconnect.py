"""A client that leaves frees its slot; a server that stops tells its clients."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from plugins.backend_torch.tests.conftest import MODEL, TOKEN, Served, wait_for


@pytest.mark.parametrize("is_streamed", [False, True])
def test_client_that_leaves_frees_the_slot(served: Served, is_streamed: bool) -> None:
    served.engine.may_step.clear()
    address = urlsplit(served.url)
    body = json.dumps({"prompt": "hi", "stream": is_streamed}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname or "", address.port or 0)) as client:
        client.sendall(head.encode() + body)
        wait_for(lambda: served.engine.num_running == 1)
    wait_for(lambda: served.engine.num_running == 0)
    [(request_id, reason, _)] = served.engine.ended
    assert (request_id, reason) == (served.engine.requests[0].request_id, "abort")
    served.engine.may_step.set()
    assert served.completion().status_code == 200


def test_client_that_leaves_in_mid_stream_frees_the_slot(served: Served) -> None:
    served.say("x" * 200)
    with served.openai().completions.create(
        model=MODEL, prompt="a", max_tokens=200, stream=True
    ) as stream:
        next(iter(stream))
        served.engine.may_step.clear()
    wait_for(lambda: served.engine.num_running == 0)
    assert [reason for _, reason, _ in served.engine.ended] in (["abort"], [])


@pytest.mark.parametrize("is_streamed", [False, True])
def test_request_that_the_engine_gives_up_is_a_500(served: Served, is_streamed: bool) -> None:
    served.engine.may_step.clear()
    failure = pytest.raises(openai.APIError, match="the server failed on this request")
    with failure, give_up_soon(served):
        list(served.openai().completions.create(model=MODEL, prompt="a", stream=is_streamed))
    assert served.http.get("/health").status_code == 200


@contextlib.contextmanager
def give_up_soon(served: Served) -> Iterator[None]:
    """End the running request from within the engine, as a failed step does."""

    def give_up() -> None:
        wait_for(lambda: served.engine.num_running == 1)
        served.engine.end(served.engine.requests[0].request_id, reason="abort")

    thread = threading.Thread(target=give_up)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_shutdown_answers_requests_in_flight_and_ends_the_server(served: Served) -> None:
    served.engine.may_step.clear()
    got: list[object] = []

    def ask(is_streamed: bool) -> None:
        try:
            answer = served.openai().completions.create(model=MODEL, prompt="a", stream=is_streamed)
            got.extend(answer if is_streamed else [])
        except openai.APIError as error:
            got.append(error)

    threads = [threading.Thread(target=ask, args=(value,)) for value in (False, True)]
    for thread in threads:
        thread.start()
    wait_for(lambda: served.engine.num_running == 2)
    answer = served.http.post("/aurora/shutdown", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 202
    for thread in threads:
        thread.join(timeout=20)
    assert len(got) == 2
    assert all("the server is stopping" in str(error) for error in got)
    wait_for(lambda: _is_closed(served.url))


def _is_closed(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 503
    except httpx.TransportError:
        return True
