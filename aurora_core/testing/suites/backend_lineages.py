"""Several lineages in one engine: whose drafter serves, whose swap it is, where traces go."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Protocol

import pytest
import torch

from aurora_core.interfaces import Backend, Speculator
from aurora_core.records import NO_DRAFTER, DraftVersion, RequestStats
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.suites.backend_fixtures import (
    NUM_RECORDED_TOKENS,
    PROMPTS,
    BackendFixtures,
    Publisher,
    Republisher,
    traces_of,
    wait_for_traces,
)
from aurora_core.testing.suites.second_lineage import LINEAGE, TENANT
from aurora_core.testing.suites.served_backend import ServedBackend
from aurora_core.versions import VersionStore

BY_TENANT = {"tenant": TENANT}
BY_NAME = {"lineage": LINEAGE}


class Give(Protocol):
    """Publishes weights for the second lineage."""

    def __call__(self, draft: DraftVersion, number: int | None = None) -> DraftVersion: ...


class LineagePromises(BackendFixtures):
    """`lineage`, for engines that provide `holds_lineages`; others skip these tests.

    The plan of the shared engine has a second lineage, whose rule is a tenant.
    """

    @pytest.fixture
    def second(self, served: ServedBackend) -> Backend:
        """The engine as the second lineage sees it, without a drafter there."""
        if not served.backend.provides.holds_lineages:
            pytest.skip("the engine holds one lineage")
        view = served.backend.lineage(LINEAGE)
        served.run(view.swap(None))
        return view

    @pytest.fixture
    def give(self, served: ServedBackend, speculator: Speculator, speculator_name: str) -> Give:
        """Publish a version's weights for the second lineage, under its number or another."""

        def publish(draft: DraftVersion, number: int | None = None) -> DraftVersion:
            store = VersionStore(Path(served.plan.lineages[0].versions_dir))
            version = draft.version if number is None else number

            def copy(path: Path) -> None:
                for name in ("config.json", "model.safetensors"):
                    shutil.copy(Path(draft.path) / name, path / name)

            if version in store.numbers():
                return store.read(version)
            return store.stage(
                version,
                copy,
                parent=None,
                speculator=speculator_name,
                target_fingerprint=speculator.target.fingerprint,
                global_step=0,
                num_tokens_trained=0,
            )

        return publish

    def test_a_swap_is_for_its_lineage_alone(
        self,
        served: ServedBackend,
        second: Backend,
        draft: DraftVersion,
        give: Give,
    ) -> None:
        given = give(draft)
        receipt = served.run(second.swap(given))
        assert (receipt.version, receipt.checksum) == (given.version, given.checksum)
        status = served.run(second.status())
        assert (status.live_version, status.checksum) == (given.version, given.checksum)
        assert served.status().live_version == NO_DRAFTER
        served.swap(draft)
        served.run(second.swap(None))
        assert served.run(second.status()).live_version == NO_DRAFTER
        status = served.status()
        assert (status.live_version, status.checksum) == (draft.version, draft.checksum)

    @pytest.mark.parametrize("wish", [BY_TENANT, BY_NAME], ids=["by_tenant", "by_name"])
    def test_a_request_is_drafted_for_by_its_own_lineage(
        self,
        served: ServedBackend,
        second: Backend,
        draft: DraftVersion,
        give: Give,
        wish: dict[str, str],
    ) -> None:
        """Requests of both run side by side, and one lineage alone has a drafter."""
        for has_drafter in (LINEAGE, ""):
            served.swap(None if has_drafter else draft)
            served.run(second.swap(give(draft) if has_drafter else None))
            requests = _both(served, wish)
            for lineage in ("", LINEAGE):
                assert sum(request.lineage == lineage for request in requests) == len(PROMPTS)
            for request in requests:
                drafts = request.lineage == has_drafter
                version = draft.version if drafts else NO_DRAFTER
                assert (request.min_draft_version, request.max_draft_version) == (version,) * 2
                assert (request.num_drafted > 0) is drafts

    def test_the_answer_is_the_same_whichever_lineage_serves(
        self,
        served: ServedBackend,
        second: Backend,
        draft: DraftVersion,
        give: Give,
    ) -> None:
        plain = served.ask(PROMPTS)
        served.swap(draft)
        served.run(second.swap(give(draft)))
        assert served.ask(PROMPTS) == plain
        assert served.ask(PROMPTS, aurora=BY_TENANT) == plain

    def test_versions_are_its_own_whatever_their_numbers(
        self,
        served: ServedBackend,
        second: Backend,
        speculator: Speculator,
        weights: TargetWeights,
        publish: Publisher,
        draft: DraftVersion,
        give: Give,
    ) -> None:
        """Both serve a version of one number, with weights that differ."""
        module = speculator.build_module(weights, ())
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.ones_like(parameter))
        other = publish(module)
        twin = give(draft, other.version)
        assert other.checksum != twin.checksum
        served.swap(other)
        served.run(second.swap(twin))
        assert served.status().checksum == other.checksum
        assert served.run(second.status()).checksum == twin.checksum

    def test_a_lineage_drafts_with_its_own_weights(
        self,
        served: ServedBackend,
        second: Backend,
        draft: DraftVersion,
        learned: DraftVersion,
        republish: Republisher,
        give: Give,
        records_traces: bool,
    ) -> None:
        """One has learned the answers by heart and the other nothing, under one number.

        Both ways round, with requests of both side by side.
        """
        if not records_traces:
            pytest.skip("the engine has no model, so acceptance does not follow from weights")
        here = republish(draft)
        served.swap(here)
        served.run(second.swap(give(learned, here.version)))
        lengths = _acceptance_lengths(served)
        assert lengths[LINEAGE] > lengths[""]
        here = republish(learned)
        served.swap(here)
        served.run(second.swap(give(draft, here.version)))
        lengths = _acceptance_lengths(served)
        assert lengths[LINEAGE] < lengths[""]

    def test_a_trace_goes_to_the_lineage_that_served_it(
        self, served: ServedBackend, second: Backend, records_traces: bool
    ) -> None:
        """Each learns from the requests that it served, and from none of the other's."""
        if not records_traces:
            pytest.skip("the engine writes no traces")
        known = {trace.trace_id for trace in traces_of(served)}
        known_there = {trace.trace_id for trace in traces_of(served, LINEAGE)}
        for prompt in PROMPTS:
            served.ask([prompt], max_tokens=NUM_RECORDED_TOKENS, aurora=BY_TENANT)
            served.ask([prompt], max_tokens=NUM_RECORDED_TOKENS)
        there = wait_for_traces(served, known_there, len(PROMPTS), LINEAGE)
        here = wait_for_traces(served, known, len(PROMPTS))
        assert [trace.tenant for trace in there] == [TENANT] * len(PROMPTS)
        assert [trace.tenant for trace in here] == [""] * len(PROMPTS)


def _both(served: ServedBackend, wish: dict[str, str]) -> list[RequestStats]:
    """Ask every prompt of each lineage, all at once; return what the engine says of it."""

    async def ask() -> None:
        await asyncio.gather(
            served.ask_async(PROMPTS, max_tokens=NUM_RECORDED_TOKENS, aurora=wish),
            served.ask_async(PROMPTS, max_tokens=NUM_RECORDED_TOKENS),
        )

    before = served.newest()
    served.run(ask())
    return served.finished(before)


def _acceptance_lengths(served: ServedBackend) -> dict[str, float]:
    """Return lineage -> acceptance length, where both have the same prompts."""
    requests = _both(served, BY_TENANT)
    lengths = {}
    for lineage in ("", LINEAGE):
        own = [request for request in requests if request.lineage == lineage]
        num_accepted = sum(sum(request.accepted_per_position) for request in own)
        lengths[lineage] = 1 + num_accepted / sum(request.num_steps for request in own)
    return lengths
