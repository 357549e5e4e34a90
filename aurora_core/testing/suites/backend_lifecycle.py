"""Start, stop, and the record of what finished."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import torch

from aurora_core.errors import BackendError
from aurora_core.interfaces import Backend, ServePlan, Speculator
from aurora_core.records import DraftVersion, RequestStats
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.suites.backend_fixtures import (
    PROMPTS,
    BackendFixtures,
    stage,
    toy_on_the_path,
)
from aurora_core.testing.suites.served_backend import ServedBackend


class LifecyclePromises(BackendFixtures):
    """`provides`, `start`, `stop` and `finished`."""

    def test_what_it_provides_is_known_before_it_starts(self, backend: Backend) -> None:
        provides = backend.provides
        assert provides == backend.provides
        assert provides.topologies
        assert provides.topologies <= {"chain", "tree"}
        assert provides.formats
        assert provides.features <= {"aux_hidden_states", "last_hidden_state", "target_logsumexp"}
        known = {"greedy", "point_mass", "rejection", "greedy_always"}
        assert provides.verification_rules
        assert provides.verification_rules <= known
        assert provides.num_resident_drafters >= 1

    def test_stopping_what_never_started_is_harmless(
        self, backend: Backend, make_plan: Callable[..., ServePlan], tmp_path: Path
    ) -> None:
        served = ServedBackend(backend, make_plan(tmp_path))
        served.stop()
        served.stop()
        served.close()

    def test_an_engine_starts_with_the_version_of_its_plan_and_stops_for_good(
        self,
        backend: Backend,
        make_plan: Callable[..., ServePlan],
        speculator: Speculator,
        speculator_name: str,
        weights: TargetWeights,
        settling_s: float,
        tmp_path: Path,
    ) -> None:
        torch.manual_seed(0)
        module = speculator.build_module(weights, ())
        draft = stage(
            tmp_path / "versions",
            speculator,
            speculator_name,
            lambda path: speculator.save(module, path),
        )
        plan = make_plan(tmp_path, initial_version=draft)
        served = ServedBackend(backend, plan, settling_s=settling_s)
        try:
            with toy_on_the_path(tmp_path / "plugins"):
                served.start()
            status = served.status()
            assert (status.live_version, status.checksum) == (draft.version, draft.checksum)
            served.ask(PROMPTS[:1])
            assert [request.min_draft_version for request in served.finished()] == [draft.version]
            url = backend.url
            served.stop()
            served.stop()
            with pytest.raises(BackendError):
                served.status()
            with pytest.raises(BackendError):
                served.swap(draft)

            async def models() -> None:
                async with httpx.AsyncClient(trust_env=False) as client:
                    await client.get(f"{url}/v1/models")

            with pytest.raises(httpx.HTTPError):
                served.run(models())
        finally:
            served.close()

    def test_finished_requests_come_once_in_order(self, served: ServedBackend) -> None:
        """Asking again from the last sequence number seen misses nothing and repeats nothing."""
        before = served.newest()
        seen: list[RequestStats] = []
        for _ in range(3):
            served.ask(PROMPTS)
            seen += served.finished(seen[-1].sequence if seen else before)
        sequences = [request.sequence for request in seen]
        assert len(sequences) == 3 * len(PROMPTS)
        assert sequences == sorted(set(sequences))
        assert len({request.request_id for request in seen}) == len(seen)
        everything = served.finished(before)
        assert [request.sequence for request in everything] == sequences
        assert served.finished(sequences[-1]) == []
        middle = sequences[len(sequences) // 2]
        assert [request.sequence for request in served.finished(middle)] == [
            sequence for sequence in sequences if sequence > middle
        ]

    def test_counts_of_a_request_agree_with_its_answer(
        self, served: ServedBackend, draft: DraftVersion, num_speculative_tokens: int
    ) -> None:
        served.swap(draft)
        before = served.newest()
        answers = served.ask(PROMPTS, max_tokens=20)
        finished = served.finished(before)
        assert sorted(request.num_output_tokens for request in finished) == sorted(
            answer.num_tokens for answer in answers
        )
        for request in finished:
            accepted = request.accepted_per_position
            assert len(accepted) <= num_speculative_tokens
            assert list(accepted) == sorted(accepted, reverse=True), "deeper is never more often"
            assert sum(accepted) <= request.num_drafted
            assert 0 < request.num_speculative_steps <= request.num_steps
            # Every step commits its accepted tokens and one of the target's own; the prompt's pass
            # gives the first token, and the last step may reach beyond the limit.
            committed = request.num_steps + sum(accepted)
            assert request.num_output_tokens - 1 <= committed
            assert request.num_output_tokens >= request.num_steps
            assert request.num_prompt_tokens > 0
            for seconds in (request.ttft_s, request.decode_s, request.finished):
                assert math.isfinite(seconds)
                assert seconds >= 0
            assert request.batch_size >= 1

    def test_status_counts_nothing_that_is_not_there(self, served: ServedBackend) -> None:
        served.ask(PROMPTS[:1])
        status = served.idle_status()
        assert (status.num_running, status.num_waiting) == (0, 0)
        assert status.memory_mib > 0
        assert status.traces_kept >= 0
        assert status.traces_shed >= 0
