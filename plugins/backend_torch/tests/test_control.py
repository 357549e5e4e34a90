"""Control routes: the token, swaps, resident drafters, status; and the public ones beside them."""

from __future__ import annotations

import pytest

from plugins.backend_torch.tests.conftest import TOKEN, Served
from plugins.backend_torch.tests.fake_engine import GOOD_CHECKSUM

ROUTES = [
    ("GET", "/aurora/status"),
    ("GET", "/aurora/requests"),
    ("POST", "/aurora/swap"),
    ("POST", "/aurora/drafters"),
    ("DELETE", "/aurora/drafters/1"),
    ("POST", "/aurora/routing"),
    ("POST", "/aurora/shutdown"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", TOKEN, "Basic " + TOKEN])
def test_control_routes_need_the_token(
    served_once: Served, method: str, path: str, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    answer = served_once.http.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert (
        answer.json()["error"]["message"] == "control routes need the token of this engine process"
    )
    assert served_once.http.get("/health").status_code == 200, "nothing was shut down"


def test_every_control_route_is_in_the_list_above(served: Served) -> None:
    paths = served.http.get("/openapi.json").json()["paths"]
    found = {
        (method.upper(), path.replace("{version}", "1"))
        for path, methods in paths.items()
        if path.startswith("/aurora/")
        for method in methods
    }
    assert found == set(ROUTES)


def test_swap_makes_a_version_live_and_none_switches_off(served: Served) -> None:
    body = {"version": 3, "checksum": GOOD_CHECKSUM}
    answer = served.control("POST", "/aurora/swap", json=body)
    assert answer.json() == {
        "version": 3,
        "checksum": GOOD_CHECKSUM,
        "load_ms": 1.0,
        "stall_ms": 0.5,
    }
    assert served.control("GET", "/aurora/status").json()["live_version"] == 3
    answer = served.control("POST", "/aurora/swap", json={"version": None})
    assert answer.json()["version"] == -1


def test_refused_swap_is_a_409_with_the_reason(served: Served) -> None:
    answer = served.control("POST", "/aurora/swap", json={"version": 3, "checksum": "other"})
    assert answer.status_code == 409
    assert answer.json()["error"]["message"] == ("version 3 has another checksum than it was given")
    assert served.engine.live_version == -1


@pytest.mark.parametrize(
    "body",
    [
        {"version": "../../etc", "checksum": "x"},
        {"version": 3, "checksum": "x", "path": "/etc/passwd"},
        {"version": 0, "checksum": "x"},
        {"version": 3},
        {"version": 3.5, "checksum": "x"},
        {},
    ],
)
def test_swap_takes_numbers_only(served: Served, body: dict[str, object]) -> None:
    assert served.control("POST", "/aurora/swap", json=body).status_code == 400
    assert served.engine.live_version == -1


def test_resident_drafters_come_and_go(served: Served) -> None:
    for version in (1, 2):
        answer = served.control("POST", "/aurora/drafters", json={"version": version})
        assert answer.json() == {"version": version, "resident": True}
    answer = served.control("POST", "/aurora/drafters", json={"version": 3})
    assert (answer.status_code, served.engine.resident) == (409, {1, 2})
    assert served.control("DELETE", "/aurora/drafters/2").status_code == 200
    assert served.control("DELETE", "/aurora/drafters/2").status_code == 409
    assert served.control("DELETE", "/aurora/drafters/x").status_code == 400


def test_finished_requests_are_listed_after_a_sequence_number(served: Served) -> None:
    for _ in range(3):
        served.completion()
    everything = served.control("GET", "/aurora/requests").json()
    assert [stats["sequence"] for stats in everything] == [0, 1, 2]
    later = served.control("GET", "/aurora/requests", params={"after": 1}).json()
    assert [stats["sequence"] for stats in later] == [2]


def test_status_has_the_memory_of_the_process(served: Served) -> None:
    assert served.control("GET", "/aurora/status").json()["memory_mib"] > 10


def test_metrics_count_requests_tokens_and_swaps(served: Served) -> None:
    served.completion(prompt="abcd", max_tokens=4)
    served.completion(temperature=9)
    served.control("POST", "/aurora/swap", json={"version": 3, "checksum": GOOD_CHECKSUM})
    served.control("POST", "/aurora/swap", json={"version": 4, "checksum": "other"})
    answer = served.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    for line in (
        'aurora_requests_total{finish_reason="length"} 1.0',
        'aurora_refused_requests_total{status="400"} 1.0',
        'aurora_refused_requests_total{status="409"} 1.0',
        "aurora_prompt_tokens_total 4.0",
        "aurora_output_tokens_total 4.0",
        "aurora_verification_steps_total 2.0",
        'aurora_accepted_tokens_total{position="1"} 2.0',
        'aurora_accepted_tokens_total{position="2"} 0.0',
        "aurora_drafted_tokens_total 4.0",
        'aurora_swaps_total{result="done"} 1.0',
        'aurora_swaps_total{result="refused"} 1.0',
        "aurora_swap_stall_seconds_sum 0.0005",
        "aurora_time_to_first_token_seconds_count 1.0",
        "aurora_inter_token_seconds_count 2.0",
        "aurora_live_version 3.0",
        "aurora_traces_shed_total 1.0",
    ):
        assert line in lines, line


def test_openapi_describes_the_routes_and_their_errors(served: Served) -> None:
    document = served.http.get("/openapi.json").json()
    post = document["paths"]["/v1/chat/completions"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/ChatBody"}
    fields = document["components"]["schemas"]["ChatBody"]["properties"]
    assert {"messages", "stream", "temperature", "stop", "aurora"} <= fields.keys()
    assert "4XX" in post["responses"]
    assert "422" not in post["responses"]
    assert "HTTPValidationError" not in document["components"]["schemas"]
