"""Requests that ask for no drafts, on a server whose operator may not want them."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from aurora_backend_sglang.backend import SglangBackend
from aurora_core.interfaces import ServePlan
from plugins.backend_sglang.tests.test_backend import options

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
PLAIN = {"aurora": {"drafter": "none"}}


@pytest.mark.parametrize(
    ("policy", "statuses", "drafted"),
    [
        ("allow", [200, 200], [True, False]),
        ("ignore", [200, 200], [True, True]),
        ("refuse", [200, 400], [True]),
    ],
)
async def test_the_operator_says_what_becomes_of_them(
    interpreter: Path, plan: ServePlan, policy: str, statuses: list[int], drafted: list[bool]
) -> None:
    backend = SglangBackend(options(interpreter, requests_without_drafts=policy))
    assert backend.provides.request_routing is (policy == "allow")
    await backend.start(plan)
    async with httpx.AsyncClient(base_url=backend.url) as client:
        answers = [
            await client.post("/v1/chat/completions", json=body) for body in (BODY, BODY | PLAIN)
        ]
    assert [answer.status_code for answer in answers] == statuses
    assert [one.num_drafted > 0 for one in await backend.finished(0)] == drafted
    if policy == "refuse":
        assert "this server takes none" in answers[1].json()["error"]["message"]
    await backend.stop()
