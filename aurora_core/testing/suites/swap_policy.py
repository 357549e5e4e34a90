"""The suite of a swap policy: a pure function of its evidence, with a reason."""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Iterator
from typing import get_args, get_type_hints

import numpy as np
import pytest

from aurora_core.interfaces import SwapPolicy
from aurora_core.records import NO_DRAFTER, DraftVersion, Evidence, Holdout, ServingStats, Verdict
from aurora_core.testing.suites.required import missing_fixture

ACTIONS = get_args(get_type_hints(Verdict)["action"])


def version(
    number: int, *, holdout: Holdout | None = None, loss: float | None = None
) -> DraftVersion:
    """Return the record of a published version."""
    return DraftVersion(
        version=number,
        path=f"/versions/v{number:06d}",
        parent=number - 1 or None,
        speculator="any",
        target_fingerprint="target",
        global_step=100 * number,
        num_tokens_trained=10_000 * number,
        created=1000.0 * number,
        checksum=f"{number:064x}",
        metrics={} if loss is None else {"train/loss": loss},
        holdout=holdout,
    )


def replay(candidate: int, live: int | None, *, num_traces: int = 8) -> Holdout:
    """Return a replay on 100 positions per trace, so many of them accepted at the first place."""
    spread = [(count, count // 2, count // 4) for count in (candidate, live or 0)]
    return Holdout(
        live_version=None if live is None else 1,
        num_anchors=(100,) * num_traces,
        candidate_accepted=(spread[0],) * num_traces,
        live_accepted=() if live is None else (spread[1],) * num_traces,
    )


def serving(number: int, acceptance_length: float, otps: float) -> ServingStats:
    """Return live traffic of one version."""
    return ServingStats(
        version=number,
        num_requests=200,
        num_output_tokens=20_000,
        acceptance_length=acceptance_length,
        otps=otps,
    )


def evidences() -> Iterator[Evidence]:
    """Yield what a controller may come with: first versions, better and worse ones, odd ones."""
    candidates = [
        version(2),
        version(2, loss=1.0),
        version(2, loss=math.nan),
        version(2, holdout=replay(80, None)),
        version(2, holdout=replay(5, None)),
        version(2, holdout=replay(80, 40)),
        version(2, holdout=replay(40, 80)),
        version(2, holdout=replay(50, 50)),
        version(2, holdout=replay(0, 0, num_traces=0)),
    ]
    traffic: tuple[tuple[ServingStats, ...], ...] = (
        (),
        (serving(NO_DRAFTER, 1.0, 50.0), serving(1, 2.5, 90.0)),
        (serving(NO_DRAFTER, 1.0, 50.0), serving(1, 1.0, 30.0)),
    )
    for candidate in candidates:
        for live, previous in ((None, None), (version(1), None), (version(1), version(0))):
            for seen in traffic:
                for num_requests, seconds in ((0, 0.0), (10_000, 1e6)):
                    yield Evidence(
                        candidate=candidate,
                        live=live,
                        previous=previous,
                        serving=seen if live is not None else (),
                        num_requests_since_swap=num_requests,
                        seconds_since_swap=seconds,
                    )


class SwapPolicySuite:
    """Promises of `SwapPolicy`. Needs no torch and no target."""

    @pytest.fixture
    def policy(self) -> SwapPolicy:
        """The policy under test."""
        missing_fixture("policy", "return your swap policy")

    def test_every_verdict_has_a_known_action(self, policy: SwapPolicy) -> None:
        for evidence in evidences():
            verdict = policy.decide(evidence)
            assert isinstance(verdict, Verdict)
            assert verdict.action in ACTIONS

    def test_every_verdict_has_a_reason_in_one_line(self, policy: SwapPolicy) -> None:
        for evidence in evidences():
            reason = policy.decide(evidence).reason
            assert reason.strip()
            assert "\n" not in reason

    def test_numbers_are_finite(self, policy: SwapPolicy) -> None:
        for evidence in evidences():
            for name, value in policy.decide(evidence).numbers.items():
                assert isinstance(value, float | int), name
                assert math.isfinite(value), name

    def test_equal_evidence_gives_an_equal_verdict(self, policy: SwapPolicy) -> None:
        """Whatever was judged before, by this instance or another."""
        first = [policy.decide(evidence) for evidence in evidences()]
        for evidence, verdict in reversed(list(zip(evidences(), first, strict=True))):
            assert policy.decide(copy.deepcopy(evidence)) == verdict
        another = type(policy)(policy.options)
        for evidence, verdict in list(zip(evidences(), first, strict=True))[::7]:
            assert another.decide(evidence) == verdict

    def test_neither_clock_nor_chance_plays_a_part(
        self, policy: SwapPolicy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clocks = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns")
        days = {name: getattr(time, name)() for name in clocks}

        def judge(day: int) -> list[Verdict]:
            random.seed(day)
            np.random.seed(day)
            with monkeypatch.context() as patch:
                for name, start in days.items():
                    later = start + day * 86_400 * (10**9 if name.endswith("_ns") else 1)
                    patch.setattr(time, name, lambda later=later: later)
                return [policy.decide(evidence) for evidence in evidences()]

        assert judge(1) == judge(2)

    def test_nothing_is_read_or_written(
        self, policy: SwapPolicy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        policy.decide(next(evidences()))  # whatever is imported late is imported now

        def refuse(*arguments: object, **options: object) -> None:
            raise AssertionError("a policy does no input or output")

        with monkeypatch.context() as patch:
            for name in ("builtins.open", "io.open", "os.open", "os.stat", "socket.socket"):
                patch.setattr(name, refuse)
            for evidence in evidences():
                policy.decide(evidence)

    def test_evidence_is_not_changed(self, policy: SwapPolicy) -> None:
        for evidence, untouched in zip(evidences(), evidences(), strict=True):
            policy.decide(evidence)
            # NaN differs from itself; the representation does not.
            assert repr(evidence) == repr(untouched)

    def test_rolls_back_only_to_something(self, policy: SwapPolicy) -> None:
        for evidence in evidences():
            if evidence.previous is None:
                assert policy.decide(evidence).action != "roll_back"

    def test_speculation_is_switched_off_only_where_it_is_on(self, policy: SwapPolicy) -> None:
        for evidence in evidences():
            if evidence.live is None:
                assert policy.decide(evidence).action != "disable_speculation"
