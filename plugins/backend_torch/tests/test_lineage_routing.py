"""Whose a request is, on the HTTP side: by name, by tenant, by share; and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.tokenizer import TargetTokenizer
from aurora_core.lineages import LineageRule
from plugins.backend_torch.tests.conftest import Served as Server
from plugins.backend_torch.tests.conftest import serving

RULES = (
    LineageRule(name="medusa", tenants=("acme",)),
    LineageRule(name="half", share=0.5),
    LineageRule(name="named"),
)


@pytest.fixture
def ruled(tiny_directory: Path, tokenizer: TargetTokenizer) -> Iterator[Server]:
    """A server over a fake engine that has three lineages beside the default one."""
    options = TorchBackendOptions(max_running_requests=2, max_waiting_requests=2)
    with serving(tiny_directory, tokenizer, options, rules=RULES) as server:
        yield server


def test_requests_are_given_to_lineages_by_name_tenant_and_share(ruled: Server) -> None:
    ruled.completion(max_tokens=1, aurora={"tenant": "acme"})
    ruled.post(
        "/v1/completions",
        {"model": "tiny", "prompt": "hi", "max_tokens": 1},
        headers={"X-Aurora-Lineage": "named"},
    )
    ruled.completion(max_tokens=1, aurora={"tenant": "acme", "lineage": "default"})
    assert [one.lineage for one in ruled.engine.requests] == ["medusa", "named", ""]
    prompts = [f"prompt {number}" for number in range(40)]
    for prompt in prompts * 2:
        assert ruled.completion(max_tokens=1, prompt=prompt).status_code == 200
    served = [one.lineage for one in ruled.engine.requests[3:]]
    assert served[:40] == served[40:] and set(served) == {"half", ""}
    assert 10 < served[:40].count("half") < 30


def test_a_lineage_that_nobody_knows_is_refused(ruled: Server) -> None:
    answer = ruled.completion(aurora={"lineage": "other"})
    assert answer.status_code == 400
    assert "there is no lineage 'other' here; there are 'default', 'medusa'" in answer.text
    for path in ("/aurora/routing", "/aurora/status?lineage=other"):
        method = "POST" if "routing" in path else "GET"
        body = {"routes": [], "lineage": "other"} if "routing" in path else None
        assert ruled.control(method, path, json=body).status_code == 404


def test_routes_of_a_lineage_are_for_its_own_requests(ruled: Server) -> None:
    routes = {"routes": [{"version": None, "share": 1.0}], "lineage": "medusa"}
    assert ruled.control("POST", "/aurora/routing", json=routes).status_code == 200
    for lineage in ("medusa", "named"):
        ruled.completion(max_tokens=1, aurora={"lineage": lineage})
    assert [one.drafter for one in ruled.engine.requests] == ["none", "live"]


def test_metrics_and_answers_name_the_lineage(ruled: Server) -> None:
    answer = ruled.completion(max_tokens=2, aurora={"lineage": "medusa"}).json()
    assert answer["aurora"]["lineage"] == "medusa"
    assert (
        "lineage"
        not in ruled.completion(max_tokens=2, aurora={"lineage": "default"}).json()["aurora"]
    )
    text = ruled.http.get("/metrics").text
    for name in ("medusa", "default"):
        assert f'aurora_lineage_requests_total{{lineage="{name}"}} 1.0' in text
    assert 'aurora_lineage_live_version{lineage="named"} -1.0' in text
