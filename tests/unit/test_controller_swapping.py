"""Judging and swapping, on the fake engine without its HTTP side."""

import asyncio
import dataclasses
import hashlib
import json

import anyio
import pytest

from aurora_core.controller.evidence import LiveTraffic, is_live, version_of
from aurora_core.controller.record_file import RecordFile
from aurora_core.controller.run_directory import read_lines
from aurora_core.controller.swap_gaps import SwapGaps
from aurora_core.controller.swapping import Swapping, read_evidence
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import Options, SwapPolicy
from aurora_core.records import NO_DRAFTER, DraftVersion, RequestStats, Verdict
from aurora_core.testing.fake_backend import FakeBackend, FakeBackendOptions


class ScriptedPolicy(SwapPolicy):
    """Says what the test says about each version, and otherwise holds."""

    def __init__(self, **actions):
        super().__init__(Options())
        self.actions = actions
        self.seen = []

    def decide(self, evidence):
        self.seen.append(evidence)
        action = self.actions.get(f"v{evidence.candidate.version}", "hold")
        if callable(action):
            action = action(evidence)
        return Verdict(action=action, reason=f"{action} as scripted", numbers={"x": 1.0})


class AnsweringBackend(FakeBackend):
    """Swaps without having been started."""

    def _check_alive(self):
        pass


class Harness:
    def __init__(
        self,
        tmp_path,
        policy,
        *,
        live=None,
        previous=None,
        backend_class=AnsweringBackend,
        **backend,
    ):
        self.path, self.policy = tmp_path, policy
        self.backend = backend_class(FakeBackendOptions(**backend))
        self.hooks, self.told, self.notes, self.drafts = [], [], [], {}
        self.now = 100.0
        self.traffic = LiveTraffic(started=self.now)
        self.swapping = Swapping(
            backend=self.backend,
            policy=policy,
            traffic=self.traffic,
            live=live,
            previous=previous,
            verdicts=RecordFile(tmp_path / "verdicts.jsonl", self.notes.append),
            find=self._find,
            note=self.notes.append,
            notify=lambda hook, **arguments: self.hooks.append((hook, arguments)),
            on_change=self._on_change,
            review_s=0.01,
            clock=lambda: self.now,
        )

    async def _on_change(self):
        s = self.swapping
        numbers = [v and v.version for v in (s.live, s.previous, s.challenger)]
        self.told.append(tuple(numbers))

    def _find(self, version):
        if version not in self.drafts:
            raise CheckpointError(f"version {version} is not there")
        return self.drafts[version]

    async def reconcile(self):
        await self.swapping.reconcile(await self.backend.status())

    def draft(self, version, content=b"weights"):
        path = self.path / f"v{version}"
        path.mkdir(exist_ok=True)
        (path / "model.safetensors").write_bytes(content)
        draft = make_draft(version, str(path), hashlib.sha256(b"weights").hexdigest())
        self.drafts[version] = draft
        return draft

    async def until(self, condition):
        with anyio.fail_after(10):
            while not condition():
                await anyio.sleep(0.005)

    def lines(self, *kinds):
        lines = read_lines(self.path / "verdicts.jsonl")
        return [line for line in lines if not kinds or line["kind"] in kinds]

    def names(self):
        return [hook.removeprefix("aurora_") for hook, _ in self.hooks]


def make_draft(version, path="p", checksum="c"):
    return DraftVersion(
        version=version, path=path, parent=None, speculator="fake", target_fingerprint="f",
        global_step=10 * version, num_tokens_trained=100, created=0.0, checksum=checksum,
    )  # fmt: skip


@pytest.fixture
async def running():
    """Run the swapping task of a harness for the length of a test."""
    tasks = []

    def start(harness):
        tasks.append(asyncio.create_task(harness.swapping.run()))
        return harness

    yield start
    for task in tasks:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_promoted_version_is_live_and_everyone_hears_of_it_in_order(tmp_path, running):
    harness = running(Harness(tmp_path, ScriptedPolicy(v1="promote")))
    harness.swapping.publish(harness.draft(1))
    await harness.until(lambda: harness.told[-1:] == [(1, None, None)])
    assert harness.backend.live_version == 1
    assert harness.names() == ["draft_published", "swap_decided", "draft_swapped"]
    assert [line["kind"] for line in harness.lines()] == ["verdict", "swap"]


async def test_held_version_is_judged_again_as_time_passes_but_recorded_once(tmp_path, running):
    late = iter(["hold", "hold", "hold", "promote"])
    harness = running(Harness(tmp_path, ScriptedPolicy(v1=lambda e: next(late, "promote"))))
    harness.swapping.publish(harness.draft(1))
    await harness.until(lambda: harness.swapping.live is not None)
    actions = [line["verdict"]["action"] for line in harness.lines("verdict")]
    assert actions == ["hold", "promote"]


async def test_failed_swap_keeps_the_old_drafter_and_is_recorded(tmp_path, running):
    harness = Harness(tmp_path, ScriptedPolicy(v2="promote"), fail_swaps_to=(2,))
    harness.swapping.live = harness.backend._live = harness.draft(1)
    running(harness)
    harness.swapping.publish(harness.draft(2))
    await harness.until(lambda: harness.lines("swap_failed"))
    assert harness.swapping.live.version == harness.backend.live_version == 1
    [failure] = harness.lines("swap_failed")
    assert failure["verdict"]["reason"] == (
        "the swap failed and version 1 goes on serving: the engine refused version 2, as configured"
    )
    assert harness.swapping.num_failed_swaps == 1
    assert "draft_swapped" not in harness.names()
    await anyio.sleep(0.05)
    assert len(harness.lines("swap_failed")) == 1  # not tried again and again


class RestartingBackend(AnsweringBackend):
    """Takes a drafter only when it starts."""

    @property
    def provides(self):
        return dataclasses.replace(super().provides, hot_swap="restart")

    @property
    def to_swap(self):
        return "start it again"

    async def swap(self, version):
        raise AssertionError("nothing may be swapped here")


async def test_engine_that_takes_drafters_at_its_start_is_never_asked_to_swap(tmp_path, running):
    policy = ScriptedPolicy(v1="promote", v2="promote")
    harness = Harness(tmp_path, policy, backend_class=RestartingBackend)
    running(harness)
    for version in (1, 2):
        harness.swapping.publish(harness.draft(version))
        await harness.until(lambda number=version: len(harness.lines("swap_waits")) == number)
    seen = len(policy.seen)
    await harness.until(lambda: len(policy.seen) > seen + 2)
    lines = harness.lines()
    assert [line["kind"] for line in lines] == ["verdict", "swap_waits"] * 2, "said once each"
    assert lines[1]["verdict"]["action"] == "hold"
    assert lines[1]["verdict"]["reason"] == "version 1 is ready, and waits: start it again"
    assert harness.swapping.live is None
    assert harness.swapping.challenger.version == 2, "a run that can swap judges it first"
    assert harness.swapping.num_failed_swaps == 0
    assert harness.names().count("swap_decided") == 4


async def test_version_whose_weights_changed_on_disk_never_goes_live(tmp_path, running):
    harness = running(Harness(tmp_path, ScriptedPolicy(v1="promote")))
    harness.swapping.publish(harness.draft(1, content=b"half"))
    await harness.until(lambda: harness.lines("swap_failed"))
    assert harness.backend.live_version == NO_DRAFTER


async def test_roll_back_returns_to_the_previous_version(tmp_path, running):
    harness = Harness(tmp_path, ScriptedPolicy(v2="roll_back"))
    one, two = harness.draft(1), harness.draft(2)
    harness.swapping.live, harness.swapping.previous = two, one
    running(harness)
    await harness.until(lambda: harness.told)
    assert harness.told == [(1, None, None)]
    assert harness.backend.live_version == 1
    swapped = [arguments for hook, arguments in harness.hooks if hook == "aurora_draft_swapped"]
    assert (swapped[0]["draft"].version, swapped[0]["previous"].version) == (1, 2)


async def test_speculation_can_be_switched_off(tmp_path, running):
    harness = Harness(tmp_path, ScriptedPolicy(v1="disable_speculation"))
    harness.swapping.live = harness.draft(1)
    running(harness)
    await harness.until(lambda: harness.told)
    assert harness.told == [(None, 1, None)]


async def test_live_version_under_review_is_not_swapped_in_again(tmp_path, running):
    policy = ScriptedPolicy(v1="promote")
    harness = Harness(tmp_path, policy)
    harness.swapping.live = harness.draft(1)
    running(harness)
    await harness.until(lambda: len(policy.seen) > 3)
    assert harness.backend.receipts == [] and harness.lines() == []


async def test_newer_version_takes_the_place_of_one_that_waits(tmp_path, running):
    harness = Harness(tmp_path, ScriptedPolicy(v1="promote", v2="promote"))
    harness.swapping.publish(harness.draft(1))
    harness.swapping.publish(harness.draft(2))
    running(harness)
    await harness.until(lambda: harness.swapping.live is not None)
    assert [receipt.version for receipt in harness.backend.receipts] == [2]


async def test_policy_that_raises_holds_and_says_so(tmp_path, running):
    harness = running(Harness(tmp_path, ScriptedPolicy(v1=lambda e: 1 / 0)))
    harness.swapping.publish(harness.draft(1))
    await harness.until(lambda: harness.lines("verdict"))
    assert "the swap policy failed: ZeroDivisionError" in harness.lines()[0]["verdict"]["reason"]
    assert harness.swapping.live is None


async def test_verdicts_on_disk_can_be_replayed(tmp_path, running):
    policy = ScriptedPolicy(v1="promote", v2="hold", v3="promote")
    harness = running(Harness(tmp_path, policy))
    harness.traffic.observe([stats(1, version=NO_DRAFTER), stats(2, version=NO_DRAFTER)])
    for version in (1, 2, 3):
        harness.swapping.publish(harness.draft(version))
        await harness.until(lambda v=version: len(harness.lines("verdict")) >= v)
    lines = harness.lines("verdict")
    assert len(lines) == 3
    for line in lines:
        evidence, verdict = read_evidence(json.loads(json.dumps(line)))
        assert policy.decide(evidence) == verdict


async def test_drafter_that_the_engine_let_go_of_is_not_live_and_a_later_one_may_be(
    tmp_path, running
):
    harness = Harness(tmp_path, ScriptedPolicy(v4="promote"))
    two, three = harness.draft(2), harness.draft(3)
    harness.swapping.live = harness.backend._live = three
    harness.swapping.previous = two
    await harness.reconcile()
    assert harness.hooks == harness.told == harness.notes == []
    harness.backend.drop_drafter()
    await harness.reconcile()
    await harness.reconcile()  # told once
    assert harness.told == [(None, 2, None)]
    [(hook, arguments)] = harness.hooks
    assert hook == "aurora_draft_swapped"
    assert (arguments["draft"], arguments["previous"]) == (None, three)
    assert arguments["receipt"].version == NO_DRAFTER
    [line] = harness.lines()
    assert (line["kind"], line["version"]) == ("engine_changed", NO_DRAFTER)
    assert harness.notes == [line["reason"]] and "let go of version 3" in line["reason"]
    assert harness.swapping.num_engine_changes == 1
    running(harness)
    harness.swapping.publish(harness.draft(4))
    await harness.until(lambda: harness.told[-1:] == [(4, None, None)])
    assert harness.policy.seen[0].live is None


async def test_swap_whose_answer_was_lost_is_found_out(tmp_path, running):
    class ForgetfulBackend(AnsweringBackend):
        async def swap(self, version):
            await super().swap(version)
            raise BackendError("no answer")

    harness = Harness(tmp_path, ScriptedPolicy(v2="promote"))
    harness.backend = harness.swapping._backend = ForgetfulBackend(FakeBackendOptions())
    harness.swapping.live = harness.backend._live = harness.draft(1)
    running(harness)
    harness.swapping.publish(harness.draft(2))
    await harness.until(lambda: harness.lines("swap_failed"))
    await harness.reconcile()
    assert harness.told[-1] == (2, 1, None)
    assert harness.notes == ["the engine serves version 2, and not version 1 as this run thought"]


async def test_weights_that_the_run_did_not_publish_do_not_go_on_serving(tmp_path):
    harness = Harness(tmp_path, ScriptedPolicy())
    harness.swapping.live = harness.draft(1)
    harness.backend._live = dataclasses.replace(harness.draft(1), checksum="of others")
    await harness.reconcile()
    assert harness.backend.live_version == NO_DRAFTER
    assert harness.told == [(None, 1, None)]
    assert "did not publish" in harness.lines("engine_changed")[0]["reason"]


async def test_swap_that_is_on_its_way_is_no_difference(tmp_path):
    entered, leave = anyio.Event(), anyio.Event()

    class SlowBackend(AnsweringBackend):
        async def swap(self, version):
            receipt = await super().swap(version)
            entered.set()
            await leave.wait()
            return receipt

    harness = Harness(tmp_path, ScriptedPolicy(v1="promote"))
    harness.backend = harness.swapping._backend = SlowBackend(FakeBackendOptions())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(harness.swapping.run)
        harness.swapping.publish(harness.draft(1))
        await entered.wait()
        await harness.reconcile()
        leave.set()
        await harness.until(lambda: harness.told[-1:] == [(1, None, None)])
        tasks.cancel_scope.cancel()
    assert harness.lines("engine_changed") == [] and harness.notes == []


def test_pauses_of_requests_at_a_swap_are_kept_apart():
    now = [0.0]
    gaps = SwapGaps(clock=lambda: now[0])
    gaps.answered(longest_gap_s=0.001, latency_s=1.0)
    now[0] = 10.0
    with gaps.window():
        now[0] = 11.0
        gaps.answered(longest_gap_s=0.002, latency_s=0.5)  # ends while a version is loaded
        now[0] = 12.0
    now[0] = 13.0
    gaps.answered(longest_gap_s=0.003, latency_s=1.5)  # was sent before the swap ended
    gaps.answered(longest_gap_s=0.004, latency_s=0.5)
    gaps.answered(longest_gap_s=None, latency_s=0.5)
    assert list(gaps.at_swaps) == [2.0, 3.0]
    assert list(gaps.elsewhere) == [1.0, 4.0]


async def test_run_that_ends_during_a_swap_finishes_it(tmp_path):
    entered, leave = anyio.Event(), anyio.Event()

    class SlowBackend(AnsweringBackend):
        async def swap(self, version):
            entered.set()
            await leave.wait()
            return await super().swap(version)

    harness = Harness(tmp_path, ScriptedPolicy(v1="promote"))
    harness.backend = harness.swapping._backend = SlowBackend(FakeBackendOptions())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(harness.swapping.run)
        harness.swapping.publish(harness.draft(1))
        await entered.wait()
        tasks.cancel_scope.cancel()
        leave.set()
    assert harness.told[-1] == (1, None, None)


def stats(sequence, *, version, accepted=(), num_steps=10, tokens=21, decode_s=1.0, upto=None):
    return RequestStats(
        sequence=sequence, request_id=str(sequence), finished=0.0, num_prompt_tokens=5,
        num_output_tokens=tokens, num_steps=num_steps, num_speculative_steps=num_steps,
        num_drafted=3 * num_steps, accepted_per_position=tuple(accepted),
        min_draft_version=version, max_draft_version=version if upto is None else upto,
        ttft_s=0.1, decode_s=decode_s, finish_reason="stop",
    )  # fmt: skip


def test_evidence_keeps_versions_apart_and_leaves_mixed_requests_out():
    traffic = LiveTraffic(started=0.0, window=4)
    traffic.observe([stats(0, version=7)])  # falls out of the window
    traffic.observe(
        [
            stats(1, version=NO_DRAFTER, num_steps=20),
            stats(2, version=3, accepted=(6, 4)),
            stats(3, version=3, accepted=(0, 0), decode_s=2.0),
            stats(4, version=3, accepted=(9, 9), upto=4),
        ]
    )
    plain, three = traffic.serving()
    assert (plain.version, plain.acceptance_length, plain.otps) == (NO_DRAFTER, 1.0, 20.0)
    assert (three.version, three.num_requests, three.num_output_tokens) == (3, 2, 42)
    assert three.acceptance_length == 1 + 10 / 20
    assert three.otps == (20 / 1 + 20 / 2) / 2
    candidate = make_draft(4)
    before = traffic.evidence(candidate, live=None, previous=None, now=30.0)
    assert (before.num_requests_since_swap, before.seconds_since_swap) == (5, 30.0)
    traffic.swapped(40.0)
    after = traffic.evidence(candidate, live=None, previous=None, now=45.0)
    assert (after.num_requests_since_swap, after.seconds_since_swap) == (0, 5.0)


@pytest.mark.parametrize(
    ("version", "live_version", "expected"),
    [(3, 3, True), (2, 3, True), (NO_DRAFTER, 3, False), (NO_DRAFTER, NO_DRAFTER, True)],
)
def test_request_that_asked_for_no_speculation_is_not_live(version, live_version, expected):
    assert is_live(stats(1, version=version), live_version) is expected


def test_request_with_a_few_plain_steps_belongs_to_its_drafter():
    def request(speculative_steps):
        mixed = stats(1, version=NO_DRAFTER, upto=5)
        return dataclasses.replace(mixed, num_speculative_steps=speculative_steps)

    assert version_of(request(9)) == 5  # the last token needed no draft
    assert version_of(request(3)) is None  # the first drafter went live in the middle
    assert version_of(stats(1, version=4, upto=5)) is None
    assert version_of(stats(1, version=NO_DRAFTER)) == NO_DRAFTER
