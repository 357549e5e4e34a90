"""Backends, sinks and policies with one planted bug each."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan, SwapPolicy, TraceSink, TraceWriter
from aurora_core.records import (
    BackendStatus,
    DraftVersion,
    Evidence,
    Provides,
    RequestStats,
    SinkStats,
    SwapReceipt,
    Trace,
    Verdict,
)
from aurora_core.spool.reader import SpoolReader
from aurora_core.spool.sink import SpoolSink
from aurora_core.testing.fake_backend import FakeBackend
from aurora_core.testing.fake_openai import Answer


class StampIsStale(FakeBackend):
    """Requests carry the version before the one that drafted for them."""

    async def answer(self, body: dict[str, Any], prompt: str) -> Answer:
        answer = await super().answer(body, prompt)
        stamped = dataclasses.replace(
            answer.stats, max_draft_version=max(-1, answer.stats.max_draft_version - 1)
        )
        self._requests[self._requests.index(answer.stats)] = stamped
        return answer


class SwapHalfApplies(FakeBackend):
    """The new version is live before its files are checked."""

    async def swap(self, version: DraftVersion | None) -> SwapReceipt:
        self._check_alive()
        self._live = version
        return await super().swap(version)


class ChecksumIsNotRead(FakeBackend):
    """Whatever lies on the disk is taken for what was published."""

    async def swap(self, version: DraftVersion | None) -> SwapReceipt:
        self._check_alive()
        self._live = version
        return SwapReceipt(
            version=-1 if version is None else version.version,
            checksum="" if version is None else version.checksum,
            load_ms=0.0,
            stall_ms=0.0,
        )


class SwapDoesNothing(FakeBackend):
    """Confirms every swap and keeps what it has."""

    async def swap(self, version: DraftVersion | None) -> SwapReceipt:
        live = self._live
        receipt = await super().swap(version)
        self._live = live
        return receipt


class StatusRemembersTheStart(FakeBackend):
    """Reports the version of the plan, not the engine's."""

    async def status(self) -> BackendStatus:
        return dataclasses.replace(await super().status(), live_version=-1, checksum="")


class InitialVersionIsIgnored(FakeBackend):
    """Starts without the drafter that its plan names."""

    async def start(self, plan: ServePlan) -> None:
        await super().start(dataclasses.replace(plan, initial_version=None))


class FinishedRepeats(FakeBackend):
    """Gives the last request once more."""

    async def finished(self, after: int) -> list[RequestStats]:
        return await super().finished(after - 1)


class FinishedIsUnordered(FakeBackend):
    """Newest first."""

    async def finished(self, after: int) -> list[RequestStats]:
        return (await super().finished(after))[::-1]


class SpeculationStaysOn(FakeBackend):
    """Cannot be switched off: no drafter means the last one."""

    async def swap(self, version: DraftVersion | None) -> SwapReceipt:
        live = self._live
        receipt = await super().swap(version)
        self._live = version or live
        return receipt


class DrafterChangesTheOutput(FakeBackend):
    """Every second version is accepted where the target disagrees."""

    async def answer(self, body: dict[str, Any], prompt: str) -> Answer:
        return await super().answer(body, f"{prompt}/{self.live_version // 2}")


class StopsOnce(FakeBackend):
    """A second stop is an error."""

    async def stop(self) -> None:
        if self._serving is None:
            raise BackendError("not running")
        await super().stop()


class StatsOverstateAcceptance(FakeBackend):
    """Counts more accepted than drafted tokens."""

    async def answer(self, body: dict[str, Any], prompt: str) -> Answer:
        answer = await super().answer(body, prompt)
        index = self._requests.index(answer.stats)
        self._requests[index] = dataclasses.replace(
            answer.stats, accepted_per_position=(answer.stats.num_drafted + 1, 0, 0)
        )
        return answer


class LineagesShareADrafter(FakeBackend):
    """A swap is for all lineages, whichever asked for it."""

    async def swap(self, version: DraftVersion | None, *, lineage: str = "") -> SwapReceipt:
        receipt = await super().swap(version, lineage=lineage)
        self._live_of = dict.fromkeys(self._live_of, version)
        return receipt


class TenantsAreIgnored(FakeBackend):
    """Requests go to the default lineage unless they name another."""

    def _lineage_of(self, extension: dict[str, Any], prompt: str) -> str:
        return super()._lineage_of({**extension, "tenant": ""}, prompt)


class LineageIsNotTold(FakeBackend):
    """What a lineage served is said to be the default one's."""

    async def answer(self, body: dict[str, Any], prompt: str) -> Answer:
        answer = await super().answer(body, prompt)
        index = self._requests.index(answer.stats)
        self._requests[index] = dataclasses.replace(answer.stats, lineage="")
        return answer


class NumbersAreShared(FakeBackend):
    """Keeps one checksum for each number, whichever lineage's version has it."""

    async def status(self, *, lineage: str = "") -> BackendStatus:
        status = await super().status(lineage=lineage)
        for draft in self._live_of.values():
            if draft is not None and draft.version == status.live_version:
                return dataclasses.replace(status, checksum=draft.checksum)
        return status


class SamplesSoundly(FakeBackend):
    """Draws sampled answers from four letters, with drafts of the first two; this one is right.

    Accepts a draft with the probability that is due, one half, and else draws what is left.
    """

    @property
    def provides(self) -> Provides:
        return dataclasses.replace(
            super().provides, verification_rules=frozenset({"greedy", "rejection"})
        )

    async def answer(self, body: dict[str, Any], prompt: str) -> Answer:
        answer = await super().answer(body, prompt)
        if not body.get("temperature"):
            return answer
        chance = random.Random(f"{body['seed']}")
        speculative = answer.stats.max_draft_version >= 0
        letters = [
            self.verified(chance) if speculative else chance.choice("abcd")
            for _ in answer.token_ids
        ]
        return dataclasses.replace(answer, token_ids=[ord(letter) for letter in letters])

    def verified(self, chance: random.Random) -> str:
        """Return one letter that a draft of "ab" and its verification commit."""
        return self.drafted(chance) if chance.random() < 0.5 else chance.choice("cd")

    def drafted(self, chance: random.Random) -> str:
        """Return a draft."""
        return chance.choice("ab")


class AcceptsAllDrafts(SamplesSoundly):
    """Sampled drafts are never refused."""

    def verified(self, chance: random.Random) -> str:
        return self.drafted(chance)


class ResidualIsTheTarget(SamplesSoundly):
    """After a refusal it draws from the target's distribution, what was refused included."""

    def verified(self, chance: random.Random) -> str:
        return self.drafted(chance) if chance.random() < 0.5 else chance.choice("abcd")


class AcceptsByTheTargetAlone(SamplesSoundly):
    """Accepts a sampled draft with the target's probability, as if it were deterministic."""

    def verified(self, chance: random.Random) -> str:
        return self.drafted(chance) if chance.random() < 0.25 else chance.choice("cd")


class NeverDrafts(FakeBackend):
    """Takes a version and decodes plainly."""

    async def answer(self, body: dict[str, Any], prompt: str) -> Answer:
        answer = await super().answer(body, prompt)
        index = self._requests.index(answer.stats)
        self._requests[index] = dataclasses.replace(answer.stats, num_drafted=0)
        return answer


class LosesOnRestart(SpoolSink):
    """Keeps traces in a folder of the process."""

    def open_writer(self) -> Any:
        return _Elsewhere(self, f"{id(self)}").open_writer()

    def open_reader(self) -> Any:
        return _Elsewhere(self, f"{id(self)}").open_reader()


class _Elsewhere(SpoolSink):
    def __init__(self, sink: SpoolSink, name: str) -> None:
        path = sink.options.path.with_name(name)
        super().__init__(sink.options.model_copy(update={"path": path}))


class _WrappedWriter(TraceWriter):
    def __init__(self, sink: SpoolSink) -> None:
        self.inner = SpoolSink.open_writer(sink)
        self.sink = sink

    def put(self, trace: Trace) -> bool:
        return self.inner.put(trace)

    def stats(self) -> SinkStats:
        return self.inner.stats()

    def close(self) -> None:
        self.inner.close()


class WritesInTheCallersThread(SpoolSink):
    """The engine waits for the disk."""

    def open_writer(self) -> Any:
        class Writer(_WrappedWriter):
            def put(self, trace: Trace) -> bool:
                (self.sink.options.path / "log").open("a").close()
                return super().put(trace)

        return Writer(self)


class DuplicatesAreKept(SpoolSink):
    """Every put gets an id of its own."""

    def open_writer(self) -> Any:
        class Writer(_WrappedWriter):
            count = 0

            def put(self, trace: Trace) -> bool:
                Writer.count += 1
                name = f"{trace.trace_id}-{Writer.count}"
                return super().put(dataclasses.replace(trace, trace_id=name))

        return Writer(self)


class HoldoutIsRandom(SpoolSink):
    """The split is by trace, so the same prompt is trained on and held out."""

    def open_writer(self) -> Any:
        class Writer(_WrappedWriter):
            def put(self, trace: Trace) -> bool:
                return super().put(dataclasses.replace(trace, request_key=trace.trace_id))

        return Writer(self)


class PrecisionIsLost(SpoolSink):
    """Features are stored in half precision."""

    def open_writer(self) -> Any:
        class Writer(_WrappedWriter):
            def put(self, trace: Trace) -> bool:
                features = {name: rows.half() for name, rows in trace.features.items()}
                return super().put(dataclasses.replace(trace, features=features))

        return Writer(self)


class ResumeForgetsTheDraws(SpoolSink):
    """The state holds what was seen, but not the random state."""

    def open_reader(self) -> Any:
        class Reader(SpoolReader):
            def load_state_dict(self, state: Mapping[str, object]) -> None:
                super().load_state_dict(state)
                self._random = random.Random(1234)

        return Reader(self.options)


class FreshIsWithoutLimit(SpoolSink):
    """Gives as many new traces as it has."""

    def open_reader(self) -> Any:
        class Reader(SpoolReader):
            def sample(self, num_traces: int, *, fresh: int) -> list[Trace]:
                return super().sample(num_traces, fresh=num_traces)

        return Reader(self.options)


class ClosedWriterRaises(SpoolSink):
    """A late trace ends the engine."""

    def open_writer(self) -> Any:
        class Writer(_WrappedWriter):
            closed = False

            def put(self, trace: Trace) -> bool:
                if self.closed:
                    raise RuntimeError("closed")
                return super().put(trace)

            def close(self) -> None:
                self.closed = True
                super().close()

        return Writer(self)


class _Policy(SwapPolicy):
    def decide(self, evidence: Evidence) -> Verdict:
        return Verdict(action="hold", reason="waits")


class PolicyRemembers(_Policy):
    """Hidden state: every other verdict is a promotion."""

    count = 0

    def decide(self, evidence: Evidence) -> Verdict:
        self.count += 1
        return Verdict(action="promote" if self.count % 2 else "hold", reason="in turn")


class PolicyReadsTheClock(_Policy):
    """Promotes on even days."""

    def decide(self, evidence: Evidence) -> Verdict:
        even = int(time.time()) // 86_400 % 2
        return Verdict(action="promote" if even else "hold", reason="the day")


class PolicyThrowsDice(_Policy):
    """Promotes at random."""

    def decide(self, evidence: Evidence) -> Verdict:
        return Verdict(action=random.choice(("promote", "hold")), reason="dice")


class PolicyGivesNoReason(_Policy):
    """An empty reason."""

    def decide(self, evidence: Evidence) -> Verdict:
        return Verdict(action="hold", reason=" ")


class PolicyPassesNanOn(_Policy):
    """Reports figures as they come."""

    def decide(self, evidence: Evidence) -> Verdict:
        return Verdict(action="hold", reason="figures", numbers=dict(evidence.candidate.metrics))


class PolicyLooksAtTheDisk(_Policy):
    """Reads the candidate's folder."""

    def decide(self, evidence: Evidence) -> Verdict:
        try:
            with open(f"{evidence.candidate.path}/version.json") as file:
                return Verdict(action="promote", reason=file.read())
        except OSError:
            return Verdict(action="hold", reason="unreadable")


class PolicyRollsBackToNothing(_Policy):
    """Rolls back whatever there was before."""

    def decide(self, evidence: Evidence) -> Verdict:
        return Verdict(action="roll_back", reason="back")


class PolicyInventsActions(_Policy):
    """An action that no controller knows."""

    def decide(self, evidence: Evidence) -> Verdict:
        return Verdict(action="maybe", reason="who knows")  # type: ignore[arg-type]  # the bug


BACKENDS: dict[type[FakeBackend], set[str]] = {
    StampIsStale: {"test_requests_carry_the_version_that_drafted_for_them"},
    SwapHalfApplies: {"test_a_refused_swap_keeps_the_drafter_that_served"},
    ChecksumIsNotRead: {"test_a_refused_swap_keeps_the_drafter_that_served"},
    SwapDoesNothing: {"test_a_swap_is_confirmed_by_the_engine"},
    StatusRemembersTheStart: {"test_a_swap_is_confirmed_by_the_engine"},
    InitialVersionIsIgnored: {
        "test_an_engine_starts_with_the_version_of_its_plan_and_stops_for_good"
    },
    FinishedRepeats: {"test_finished_requests_come_once_in_order"},
    FinishedIsUnordered: {"test_finished_requests_come_once_in_order"},
    SpeculationStaysOn: {"test_speculation_can_be_switched_off_again"},
    DrafterChangesTheOutput: {"test_greedy_answers_are_the_same_with_any_drafter"},
    AcceptsAllDrafts: {"test_sampled_answers_come_from_the_same_distribution"},
    ResidualIsTheTarget: {"test_sampled_answers_come_from_the_same_distribution"},
    AcceptsByTheTargetAlone: {"test_sampled_answers_come_from_the_same_distribution"},
    NeverDrafts: {"test_sampled_answers_come_from_the_same_distribution"},
    StopsOnce: {"test_stopping_what_never_started_is_harmless"},
    LineagesShareADrafter: {"test_a_swap_is_for_its_lineage_alone"},
    TenantsAreIgnored: {"test_a_request_is_drafted_for_by_its_own_lineage"},
    LineageIsNotTold: {"test_a_request_is_drafted_for_by_its_own_lineage"},
    NumbersAreShared: {"test_versions_are_its_own_whatever_their_numbers"},
    StatsOverstateAcceptance: {"test_counts_of_a_request_agree_with_its_answer"},
}
SINKS: dict[type[TraceSink], set[str]] = {
    LosesOnRestart: {"test_what_was_written_survives_a_restart"},
    WritesInTheCallersThread: {"test_putting_does_no_input_or_output_in_the_callers_thread"},
    DuplicatesAreKept: {"test_a_trace_is_held_once_however_often_it_is_put"},
    HoldoutIsRandom: {"test_held_out_requests_are_never_trained_on"},
    PrecisionIsLost: {"test_what_is_read_is_what_was_put"},
    ResumeForgetsTheDraws: {"test_a_reader_goes_on_where_its_state_was_taken"},
    FreshIsWithoutLimit: {"test_every_training_trace_is_fresh_exactly_once"},
    ClosedWriterRaises: {"test_closing_twice_is_harmless_and_a_closed_writer_refuses"},
}
POLICIES: dict[type[SwapPolicy], set[str]] = {
    PolicyRemembers: {"test_equal_evidence_gives_an_equal_verdict"},
    PolicyReadsTheClock: {"test_neither_clock_nor_chance_plays_a_part"},
    PolicyThrowsDice: {"test_neither_clock_nor_chance_plays_a_part"},
    PolicyGivesNoReason: {"test_every_verdict_has_a_reason_in_one_line"},
    PolicyPassesNanOn: {"test_numbers_are_finite"},
    PolicyLooksAtTheDisk: {"test_nothing_is_read_or_written"},
    PolicyRollsBackToNothing: {"test_rolls_back_only_to_something"},
    PolicyInventsActions: {"test_every_verdict_has_a_known_action"},
}
"""Bug -> tests that must fail for it."""

MUTANTS: Sequence[tuple[type, set[str]]] = [
    *BACKENDS.items(),
    *SINKS.items(),
    *POLICIES.items(),
]
