"""What a vLLM server with Aurora's half keeps, a real one and the fake one alike."""

from __future__ import annotations

from typing import ClassVar

import httpx

from aurora_backend_vllm.backend import VllmBackend
from aurora_backend_vllm.counters import count
from aurora_core.records import NO_DRAFTER, DraftVersion
from aurora_core.testing.suites.backend_fixtures import PROMPTS
from aurora_core.testing.suites.served_backend import ServedBackend
from tests.conformance.eagle_server import EagleServerSuite


class VllmServerContract(EagleServerSuite):
    """Beside the suite: what the controller relies on in vLLM's own routes."""

    # vLLM's kernels for CPUs take no smaller heads.
    target_shape: ClassVar[dict[str, int]] = {"vocab_size": 320, "hidden_size": 128}
    confirming_route = "/aurora/swap"

    def test_vllms_own_counters_agree(self, served: ServedBackend, draft: DraftVersion) -> None:
        backend = served.backend
        assert isinstance(backend, VllmBackend)
        served.swap(draft)
        served.ask(PROMPTS, max_tokens=20)
        ours, vllms = count(served.finished()), served.run(backend.counters())
        assert ours.num_drafted > 0
        assert not ours.differs_from(vllms), (ours, vllms)

    def test_a_response_tells_what_was_counted(
        self, served: ServedBackend, draft: DraftVersion
    ) -> None:
        served.swap(draft)
        for fields, version in (({}, draft.version), ({"drafter": "none"}, NO_DRAFTER)):
            before = served.newest()
            told = served.complete(prompt=PROMPTS[0], max_tokens=20, aurora=fields)["aurora"]
            (noted,) = served.finished(before)
            assert told["min_draft_version"] == told["max_draft_version"] == version
            assert noted.max_draft_version == version
            for name in ("num_steps", "num_speculative_steps", "num_drafted"):
                assert told[name] == getattr(noted, name), name
            assert sum(told["accepted_per_position"]) == sum(noted.accepted_per_position)

    def test_control_routes_need_the_token(self, served: ServedBackend) -> None:
        url = served.backend.url
        assert httpx.get(f"{url}/aurora/status", timeout=60).status_code == 401
        swap = httpx.post(f"{url}/aurora/swap", json={"version": None}, timeout=60)
        assert swap.status_code == 401
