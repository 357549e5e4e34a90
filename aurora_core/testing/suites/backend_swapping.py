"""Swaps: all or nothing, read back from the engine, and visible in what finishes afterwards."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import httpx
import pytest

from aurora_core.errors import BackendError
from aurora_core.records import NO_DRAFTER, DraftVersion
from aurora_core.testing.suites.backend_fixtures import PROMPTS, BackendFixtures, Republisher
from aurora_core.testing.suites.served_backend import Answered, ServedBackend


class SwappingPromises(BackendFixtures):
    """`swap`, `status` and the versions that requests carry."""

    def test_without_a_drafter_nothing_is_drafted(self, served: ServedBackend) -> None:
        before = served.newest()
        status = served.status()
        assert (status.live_version, status.checksum) == (NO_DRAFTER, "")
        served.ask(PROMPTS)
        for request in served.finished(before):
            assert (request.min_draft_version, request.max_draft_version) == (NO_DRAFTER,) * 2
            assert request.num_drafted == request.num_speculative_steps == 0
            assert not any(request.accepted_per_position)

    def test_a_swap_is_confirmed_by_the_engine(
        self, served: ServedBackend, draft: DraftVersion
    ) -> None:
        """Version and checksum in the receipt, and again whenever the engine is asked."""
        receipt = served.swap(draft)
        assert (receipt.version, receipt.checksum) == (draft.version, draft.checksum)
        assert receipt.load_ms >= 0
        assert receipt.stall_ms >= 0
        status = served.status()
        assert (status.live_version, status.checksum) == (draft.version, draft.checksum)

    def test_requests_carry_the_version_that_drafted_for_them(
        self, served: ServedBackend, draft: DraftVersion, republish: Republisher
    ) -> None:
        for version in (draft, republish(draft)):
            served.swap(version)
            before = served.newest()
            served.ask(PROMPTS)
            finished = served.finished(before)
            assert len(finished) == len(PROMPTS)
            for request in finished:
                stamps = (request.min_draft_version, request.max_draft_version)
                assert stamps == (version.version,) * 2
                assert request.num_drafted > 0
                assert request.num_speculative_steps > 0

    def test_speculation_can_be_switched_off_again(
        self, served: ServedBackend, draft: DraftVersion
    ) -> None:
        served.swap(draft)
        receipt = served.swap(None)
        assert (receipt.version, receipt.checksum) == (NO_DRAFTER, "")
        assert served.status().live_version == NO_DRAFTER
        before = served.newest()
        served.ask(PROMPTS[:1])
        assert [request.num_drafted for request in served.finished(before)] == [0]

    @pytest.mark.parametrize("damage", ["checksum", "absent", "truncated", "changed"])
    def test_a_refused_swap_keeps_the_drafter_that_served(
        self,
        served: ServedBackend,
        draft: DraftVersion,
        republish: Republisher,
        damage: str,
    ) -> None:
        """Wrong checksum, no such version, half a file, another file: the old one drafts on."""
        served.swap(draft)
        expected = served.ask(PROMPTS)
        if damage == "absent":
            bad = dataclasses.replace(
                draft, version=draft.version + 900, path=f"{draft.path[:-6]}000900"
            )
        else:
            bad = republish(draft)
            weights = Path(bad.path) / "model.safetensors"
            content = weights.read_bytes()
            if damage == "checksum":
                bad = dataclasses.replace(bad, checksum="0" * 64)
            elif damage == "truncated":
                weights.write_bytes(content[: len(content) // 2])
            else:
                weights.write_bytes(content[:-4] + bytes(4 * [63]))
        with pytest.raises(BackendError):
            served.swap(bad)
        status = served.status()
        assert (status.live_version, status.checksum) == (draft.version, draft.checksum)
        before = served.newest()
        assert served.ask(PROMPTS) == expected
        stamps = {request.max_draft_version for request in served.finished(before)}
        assert stamps == {draft.version}

    def test_no_request_is_lost_or_changed_by_swaps_under_load(
        self, served: ServedBackend, draft: DraftVersion, republish: Republisher
    ) -> None:
        expected = served.ask(PROMPTS, max_tokens=32)
        other = republish(draft)
        before = served.newest()

        async def swap_meanwhile() -> list[Answered]:
            asked = asyncio.create_task(served.ask_async(PROMPTS * 3, max_tokens=32))
            for version in (draft, other, None, draft):
                await served.backend.swap(version)
            return await asked

        assert served.run(swap_meanwhile()) == expected * 3
        finished = served.finished(before)
        assert len(finished) == 3 * len(PROMPTS)
        allowed = {NO_DRAFTER, draft.version, other.version}
        for request in finished:
            assert {request.min_draft_version, request.max_draft_version} <= allowed
            assert request.min_draft_version <= request.max_draft_version

    def test_equal_weights_under_another_number_draft_the_same(
        self,
        served: ServedBackend,
        draft: DraftVersion,
        republish: Republisher,
        records_traces: bool,
    ) -> None:
        if not records_traces:
            pytest.skip("the engine has no model, so acceptance does not follow from weights")
        counts = []
        for version in (draft, republish(draft)):
            served.swap(version)
            before = served.newest()
            for prompt in PROMPTS:
                served.ask([prompt])
            counts.append(
                [
                    (request.num_drafted, request.accepted_per_position)
                    for request in served.finished(before)
                ]
            )
        assert counts[0] == counts[1]

    def test_the_engine_is_reachable_at_its_address(self, served: ServedBackend) -> None:
        url = served.backend.url
        assert url.startswith("http")
        assert not url.endswith(("/", "/v1"))

        async def models() -> httpx.Response:
            async with httpx.AsyncClient(trust_env=False) as client:
                return await client.get(f"{url}/v1/models")

        assert served.run(models()).json()["data"]
