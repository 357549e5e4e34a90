"""Shares of the requests for another drafter, or for none."""

from __future__ import annotations

import pytest

from plugins.backend_torch.tests.conftest import Served
from plugins.backend_torch.tests.fake_engine import GOOD_CHECKSUM


def route(served: Served, *routes: dict[str, object]) -> int:
    return served.control("POST", "/aurora/routing", json={"routes": list(routes)}).status_code


def test_a_share_goes_to_each_route_and_the_rest_to_the_live_drafter(served: Served) -> None:
    trial = {"version": 4, "checksum": GOOD_CHECKSUM, "share": 0.3}
    assert route(served, trial, {"version": None, "share": 0.3}) == 200
    assert served.engine.resident == {4}
    for _ in range(60):
        assert served.completion(max_tokens=1).status_code == 200
    drafters = [request.drafter for request in served.engine.requests]
    counts = {drafter: drafters.count(drafter) for drafter in (4, "none", "live")}
    assert sum(counts.values()) == 60
    assert all(count > 4 for count in counts.values()), counts


def test_requests_that_name_a_drafter_are_never_routed(served: Served) -> None:
    assert route(served, {"version": None, "share": 1.0}) == 200
    for drafter in ("live", "none"):
        served.completion(max_tokens=1, aurora={"drafter": drafter})
    served.completion(max_tokens=1, aurora={"tenant": "someone"})
    assert [request.drafter for request in served.engine.requests] == ["live", "none", "none"]


def test_routes_are_replaced_and_their_drafters_let_go_of(served: Served) -> None:
    route(served, {"version": 4, "checksum": GOOD_CHECKSUM, "share": 1.0})
    route(served, {"version": 5, "checksum": GOOD_CHECKSUM, "share": 1.0})
    assert served.engine.resident == {5}
    route(served)
    assert served.engine.resident == set()
    served.completion(max_tokens=1)
    assert served.engine.requests[-1].drafter == "live"


def test_a_route_whose_drafter_failed_falls_back_to_the_live_one(served: Served) -> None:
    route(served, {"version": 4, "checksum": GOOD_CHECKSUM, "share": 1.0})
    served.engine.resident.clear()
    assert served.completion(max_tokens=1).status_code == 200
    assert served.engine.requests[-1].drafter == "live"


def test_shadow_routes_take_no_request_from_anybody(served: Served) -> None:
    beside = {"version": 5, "checksum": GOOD_CHECKSUM, "share": 0.5, "shadow": True}
    assert route(served, beside, {"version": None, "share": 0.5}) == 200
    for _ in range(60):
        assert served.completion(max_tokens=1).status_code == 200
    drawn = [(request.drafter, request.shadow) for request in served.engine.requests]
    counts = {
        one: drawn.count(one) for one in [(d, v) for d in ("live", "none") for v in (None, 5)]
    }
    assert sum(counts.values()) == 60
    assert all(count > 3 for count in counts.values()), counts


def test_requests_that_name_a_drafter_may_be_shadowed(served: Served) -> None:
    route(served, {"version": 5, "checksum": GOOD_CHECKSUM, "share": 1.0, "shadow": True})
    served.completion(max_tokens=1, aurora={"drafter": "none"})
    assert [(one.drafter, one.shadow) for one in served.engine.requests] == [("none", 5)]


def test_refused_routes_leave_those_before(served: Served) -> None:
    route(served, {"version": 4, "checksum": GOOD_CHECKSUM, "share": 1.0})
    answer = served.control(
        "POST",
        "/aurora/routing",
        json={"routes": [{"version": 5, "checksum": "other", "share": 0.5}]},
    )
    assert answer.status_code == 409
    assert "another checksum" in answer.json()["error"]["message"]
    served.completion(max_tokens=1)
    assert served.engine.requests[-1].drafter == 4


@pytest.mark.parametrize(
    ("routes", "status", "words"),
    [
        ([{"version": 0, "share": 0.5}], 400, "version"),
        ([{"version": None, "share": 0.0}], 400, "share"),
        ([{"version": None, "share": 1.5}], 400, "share"),
        ([{"version": None}], 400, "share"),
        ([{"version": None, "share": 0.6}] * 2, 409, "add up to more than 1"),
        ([{"version": 5, "share": 0.6, "shadow": True}] * 2, 409, "of all shadow routes add up"),
        ([{"version": None, "share": 0.5, "shadow": True}], 409, "a shadow route names no version"),
    ],
)
def test_bad_routes_are_refused(
    served_once: Served, routes: list[object], status: int, words: str
) -> None:
    answer = served_once.control("POST", "/aurora/routing", json={"routes": routes})
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
