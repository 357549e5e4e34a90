"""Bad drafters, drifting traffic and a person's will, on the fake engine without HTTP.

Time stands still unless a test moves it: every request is answered by the fake engine's own
simulation, and the versions are judged after each batch of them, as once every few seconds.
"""

from __future__ import annotations

import hashlib
import math

import pytest

from aurora_core.config import GuardSection
from aurora_core.controller.earlier_run import read_last_swap
from aurora_core.controller.evidence import LiveTraffic
from aurora_core.controller.record_file import RecordFile
from aurora_core.controller.run_directory import read_lines
from aurora_core.controller.swapping import Swapping, read_evidence
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import Options, ServePlan
from aurora_core.policies import (
    AlwaysSwap,
    CanaryOptions,
    CanarySwap,
    Guard,
    HoldoutGate,
    HoldoutOptions,
)
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    Holdout,
    Needs,
    SwapReceipt,
    TargetSpec,
)
from aurora_core.testing.fake_backend import FakeBackend, FakeBackendOptions

GOOD = b"weights"
ACCEPTS_GOOD = 0.75


class AnsweringBackend(FakeBackend):
    """Answers without having been started."""

    def _check_alive(self):
        pass

    def __init__(self, options):
        super().__init__(options)
        target = TargetSpec(
            name="t", path="t", architecture="LlamaForCausalLM", fingerprint="f",
            tokenizer_fingerprint="f", vocab_size=8, hidden_size=4, num_layers=2,
            max_position_embeddings=64,
        )  # fmt: skip
        self._plan = ServePlan(
            target=target, speculator="fake", speculator_options={}, plugins=None, needs=Needs(),
            num_speculative_tokens=3, versions_dir="", initial_version=None, sink=None,
            sink_options={}, run_dir="", seed=0,
        )  # fmt: skip


class World:
    """A controller's judging side with an engine that answers at once."""

    def __init__(self, tmp_path, policy, *, guard=None, **backend):
        self.path = tmp_path
        backend = {
            "step_ms": 0.05,
            "max_answer_tokens": 40,
            "acceptance_per_version": 0.3,
        } | backend
        self.backend = AnsweringBackend(FakeBackendOptions(**backend))
        self.now, self.sent, self.notes, self.drafts = 1000.0, 0, [], {}
        self.champions, self.fresh_asked = [], 0
        self._begin(policy, guard or GuardSection(), live=None, previous=None)

    def restart(self, policy, guard=None):
        """Go on with another policy, as a run on the same directory does."""
        swapping = self.swapping
        self._begin(policy, guard or GuardSection(), live=swapping.live, previous=swapping.previous)

    def _begin(self, policy, guard, *, live, previous):
        self.policy = Guard(policy, guard)
        self.traffic = LiveTraffic(started=self.now, drift_threshold=guard.drift_threshold)
        self.traffic.remember(
            self.backend._requests, last_swap=read_last_swap(self.path / "verdicts.jsonl")
        )
        self.swapping = Swapping(
            backend=self.backend,
            policy=self.policy,
            traffic=self.traffic,
            live=live,
            previous=previous,
            verdicts=RecordFile(self.path / "verdicts.jsonl", self.notes.append),
            find=self._find,
            note=self.notes.append,
            notify=lambda hook, **arguments: None,
            on_change=self._on_change,
            guard=guard,
            stored=lambda: tuple(self.drafts),
            on_drift=self._on_drift,
            clock=lambda: self.now,
        )

    async def _on_change(self):
        live = self.swapping.live
        self.champions.append(live.version if live else None)

    async def _on_drift(self):
        self.fresh_asked += 1

    def _find(self, version):
        if version not in self.drafts:
            raise CheckpointError(f"version {version} is not there")
        return self.drafts[version]

    @property
    def live(self):
        return self.backend.live_version

    def draft(self, version, content=GOOD, *, scored=ACCEPTS_GOOD, damage=False, **metrics):
        """Publish a version; `scored` is what the learner says it accepts, None says nothing."""
        path = self.path / f"v{version}"
        path.mkdir()
        (path / "model.safetensors").write_bytes(content + b"!" * damage)
        live = self.swapping.live
        draft = DraftVersion(
            version=version, path=str(path), parent=None, speculator="fake",
            target_fingerprint="f", global_step=version, num_tokens_trained=1, created=0.0,
            checksum=hashlib.sha256(content).hexdigest(), metrics=metrics,
            holdout=None if scored is None else replay(scored, live and live.version),
        )  # fmt: skip
        self.drafts[version] = draft
        self.swapping.publish(draft)
        return draft

    async def serve(self, num_requests, *, review_every=4, tenant="", seconds=1.0):
        """Answer requests one after the other, and judge every few of them."""
        for _ in range(num_requests):
            self.sent += 1
            await self.backend.answer(
                {"max_tokens": 40, "aurora": {"tenant": tenant}}, f"prompt {self.sent}"
            )
            self.now += seconds
            self.traffic.observe(self.backend._requests[-1:])
            if self.sent % review_every == 0:
                await self.swapping.review()

    def lines(self, *kinds):
        lines = read_lines(self.path / "verdicts.jsonl")
        return [line for line in lines if line["kind"] in kinds]

    def actions(self):
        return [line["verdict"]["action"] for line in self.lines("verdict")]


def replay(accepts, live_version):
    def counts(rate):
        return tuple(
            tuple(int(anchors * rate**depth) for depth in (1, 2, 3)) for anchors in range(80, 96)
        )

    return Holdout(
        live_version=live_version,
        num_anchors=tuple(range(80, 96)),
        candidate_accepted=counts(accepts),
        live_accepted=counts(ACCEPTS_GOOD - 0.05) if live_version is not None else (),
    )


async def promoted(tmp_path, policy, **options):
    """Return a world in which version 2, a good one, is live and known."""
    world = World(tmp_path, policy, **options)
    await world.backend.swap(world.draft(2))
    world.swapping.challenger = None
    await world.swapping._take_over(
        world.drafts[2], world.backend.receipts[-1], previous=None, kind="swap"
    )
    await world.serve(60)
    assert world.live == 2
    return world


POISONS = {
    "noise": {"content": b"noise", "scored": 0.0},
    "noise that was never scored": {"content": b"noise", "scored": None},
    "noise with a loss that is no number": {"content": b"noise", "scored": 0.9, "loss": math.nan},
    "half as good": {"content": b"noise0.3", "scored": 0.3},
    "damaged after it was scored": {"content": GOOD, "scored": 0.9, "damage": True},
}


@pytest.mark.parametrize("poison", POISONS)
async def test_poisoned_version_never_becomes_champion_under_the_gate(tmp_path, poison):
    world = await promoted(tmp_path, HoldoutGate(HoldoutOptions()))
    for version in (3, 4):
        world.draft(version, **POISONS[poison])
        await world.serve(40)
    assert set(world.champions) == {2} and world.live == 2


@pytest.mark.parametrize("poison", POISONS)
async def test_poisoned_version_never_becomes_champion_under_a_canary(tmp_path, poison):
    world = await promoted(tmp_path, CanarySwap(CanaryOptions(share=0.3)))
    for version in (3, 4):
        world.draft(version, **POISONS[poison])
        await world.serve(80)
    assert set(world.champions) == {2} and world.live == 2
    assert world.swapping.trials.draft is None and world.swapping.challenger is None


@pytest.mark.parametrize("poison", POISONS)
async def test_poisoned_version_that_is_always_promoted_is_rolled_back_in_20_requests(
    tmp_path, poison
):
    world = await promoted(tmp_path, AlwaysSwap(Options()))
    for version in (3, 4):
        world.draft(version, **POISONS[poison])
        await world.swapping.review()
        await world.serve(20)
        assert world.live == 2


UNGUARDED = GuardSection(probation_requests=0, disable_speculation=False, plain_share=0)


@pytest.mark.parametrize("policy", ["gate", "canary", "always"])
@pytest.mark.parametrize("poison", POISONS)
async def test_poisoned_champion_is_rolled_back_in_20_requests_once_the_guard_is_on(
    tmp_path, poison, policy
):
    """Nobody judged: `always` without a guard. Then a run with one goes on from there."""
    world = await promoted(tmp_path, AlwaysSwap(Options()), guard=UNGUARDED)
    world.draft(3, **POISONS[poison])
    await world.serve(60)
    assert world.live == (2 if POISONS[poison].get("damage") else 3)
    world.restart(
        {
            "gate": HoldoutGate(HoldoutOptions()),
            "canary": CanarySwap(CanaryOptions(share=0.3)),
            "always": AlwaysSwap(Options()),
        }[policy]
    )
    await world.serve(20)
    assert world.live == 2
    await world.serve(60)
    assert world.live == 2 and world.swapping.live.version == 2


@pytest.mark.parametrize("poison", ["noise", "noise that was never scored", "half as good"])
async def test_poisoned_champion_that_is_slower_than_no_speculation_is_rolled_back_and_not_off(
    tmp_path, poison
):
    """Switched off, it would be the poison that is tried again, and never the good version."""
    world = await promoted(tmp_path, AlwaysSwap(Options()), draft_ms=0.03)
    world.draft(3, **POISONS[poison])
    await world.swapping.review()
    await world.serve(20)
    assert world.live == 2
    assert "disable_speculation" not in world.actions()


async def test_versions_that_are_all_too_slow_do_not_take_turns(tmp_path):
    """The traffic changes while a version is on probation: no version fits it any more."""
    world = await promoted(tmp_path, AlwaysSwap(Options()), draft_ms=0.03)
    world.draft(3)
    await world.serve(20)
    assert world.live == 3
    world.backend._noise["", 2] = world.backend._noise["", 3] = 0.0
    await world.serve(150)
    assert world.live == NO_DRAFTER
    assert world.actions().count("roll_back") <= 1


async def test_drift_that_began_before_a_restart_is_noticed_after_it(tmp_path):
    world = await promoted(tmp_path, AlwaysSwap(Options()))
    world.backend._noise["", 2] = 0.1  # from now on it accepts nearly nothing
    await world.serve(4)
    assert world.fresh_asked == 0
    world.restart(AlwaysSwap(Options()))
    await world.serve(30)
    assert world.fresh_asked == 1


async def test_two_poisoned_versions_in_a_row_are_rolled_back_to_the_good_one(tmp_path):
    world = await promoted(tmp_path, AlwaysSwap(Options()))
    world.draft(3, **POISONS["noise"])
    await world.swapping.review()
    await world.serve(3)
    world.draft(4, **POISONS["noise"])
    await world.swapping.review()
    assert (world.live, world.swapping.previous.version) == (4, 3)
    await world.serve(20)
    assert world.live == 2
    [line] = [one for one in world.lines("verdict") if one["verdict"]["action"] == "roll_back"]
    assert line["verdict"]["version"] == 2
    assert line["verdict"]["numbers"]["gain_upper_bound"] < -0.05
    assert "version 4 on probation makes" in line["verdict"]["reason"]


async def test_learner_whose_scores_lie_passes_the_gate_and_is_rolled_back(tmp_path):
    world = await promoted(tmp_path, HoldoutGate(HoldoutOptions()))
    world.draft(3, b"noise", scored=0.9)
    await world.swapping.review()
    assert world.live == 3
    await world.serve(20)
    assert world.live == 2


async def test_learner_whose_scores_lie_does_not_pass_a_canary(tmp_path):
    world = await promoted(tmp_path, CanarySwap(CanaryOptions(share=0.3)))
    world.draft(3, b"noise", scored=0.9)
    await world.serve(80)
    assert set(world.champions) == {2}
    assert world.actions()[-2:] == ["canary", "drop"]
    assert any(request.max_draft_version == 3 for request in world.backend._requests)


async def test_canary_promotes_a_better_version_and_routes_nothing_more(tmp_path):
    world = await promoted(
        tmp_path, CanarySwap(CanaryOptions(share=0.3)), acceptance_per_version=0.12
    )
    world.draft(7, scored=0.9)
    await world.serve(150)
    assert world.live == 7
    assert all(route.draft is None for route in world.backend.routes)
    promotion = [one for one in world.lines("verdict") if one["verdict"]["action"] == "promote"][-1]
    assert promotion["verdict"]["numbers"]["gain_lower_bound"] > 0
    assert promotion["evidence"]["trial"]["challenger"]["num_requests"] >= 8


async def test_good_versions_pass_their_probation(tmp_path):
    world = await promoted(tmp_path, AlwaysSwap(Options()))
    for version in (3, 4):
        world.draft(version)
        await world.serve(60)
        assert world.live == version
    assert "roll_back" not in world.actions()


async def test_traffic_that_no_draft_fits_disables_speculation_at_little_cost(tmp_path):
    """Every version accepts nothing, and a step with drafts takes a fifth longer."""
    world = World(tmp_path, AlwaysSwap(Options()), guard=GuardSection(cooldown_s=60), draft_ms=0.01)
    for version in range(1, 6):
        world.draft(version, b"noise", scored=0.0)
        await world.serve(100)
    assert world.live == NO_DRAFTER
    assert "disable_speculation" in world.actions()
    requests = world.backend._requests
    lost = sum(r.num_steps * 0.01 for r in requests if r.max_draft_version != NO_DRAFTER)
    assert lost / sum(r.num_steps * 0.05 for r in requests) < 0.03


async def test_speculation_comes_back_when_drafts_are_right_again(tmp_path):
    guard = GuardSection(cooldown_s=30, retry_share=0.3)
    world = World(tmp_path, AlwaysSwap(Options()), guard=guard, draft_ms=0.01)
    world.draft(1, b"noise", scored=0.0)
    await world.serve(100)
    assert world.live == NO_DRAFTER and world.swapping.is_switched_off
    world.draft(2)
    await world.serve(20)
    assert world.live == NO_DRAFTER  # not before the pause is over
    await world.serve(200)
    assert world.live == 2 and not world.swapping.is_switched_off
    assert world.actions()[-2:] == ["canary", "promote"]


async def test_engine_that_cannot_route_tries_again_on_all_requests_after_the_pause(tmp_path):
    class Unrouted(AnsweringBackend):
        @property
        def provides(self):
            import dataclasses

            return dataclasses.replace(super().provides, request_routing=False)

    world = World(tmp_path, AlwaysSwap(Options()), guard=GuardSection(cooldown_s=30))
    world.backend.__class__ = Unrouted
    world.swapping.trials.can_route = False
    world.swapping.previous = world.draft(1)
    world.swapping.challenger = None
    world.swapping._off_since, world.swapping._num_off = world.now, 1
    await world.swapping.review()
    assert world.live == NO_DRAFTER
    world.now += 31
    await world.swapping.review()
    assert world.live == 1 and world.backend.routes == ()


async def test_share_without_speculation_keeps_its_speed_known(tmp_path):
    world = await promoted(tmp_path, AlwaysSwap(Options()), guard=GuardSection(plain_share=0.05))
    await world.serve(200)
    [line] = [one for one in world.traffic.serving() if one.version == NO_DRAFTER]
    assert 10 <= line.num_requests <= 40
    assert [route.share for route in world.backend.routes] == [0.05]


async def test_routes_that_the_engine_refuses_are_told_once_and_cost_nothing(tmp_path, caplog):
    class Unwilling(AnsweringBackend):
        async def route(self, routes):
            raise BackendError("no room for routes")

    world = World(tmp_path, AlwaysSwap(Options()))
    world.backend.__class__ = Unwilling
    world.draft(1)
    await world.serve(40)
    assert world.live == 1
    assert caplog.text.count("no room for routes") == 1


async def test_swap_takes_requests_off_the_version_on_trial_and_its_trial_begins_anew(tmp_path):
    world = await promoted(tmp_path, CanarySwap(CanaryOptions(share=0.3)))
    draft = world.draft(3, scored=0.9)
    await world.swapping.review()
    assert world.swapping.trials.draft is draft
    await world.swapping.choose(None, reason="a person switches speculation off")
    assert world.swapping.trials.draft is None and world.swapping.challenger is draft
    assert world.backend.routes == ()


async def test_trial_that_the_engine_refuses_drops_the_version(tmp_path):
    world = await promoted(tmp_path, CanarySwap(CanaryOptions()), fail_swaps_to=(3,))
    world.draft(3, scored=0.9)
    await world.serve(8)
    assert world.swapping.challenger is None and world.live == 2
    [failure] = world.lines("swap_failed")
    assert failure["verdict"]["reason"] == (
        "the trial failed and version 2 goes on serving: the engine refused version 3, as "
        "configured"
    )


async def test_what_a_person_made_live_stays_until_they_let_go(tmp_path):
    world = await promoted(tmp_path, AlwaysSwap(Options()))
    world.draft(3)
    await world.swapping.review()
    receipt = await world.swapping.choose(2, reason="version 2 was promoted by a person")
    assert isinstance(receipt, SwapReceipt) and world.swapping.pinned
    world.draft(4)
    await world.serve(20)
    assert world.live == 2
    held = world.lines("verdict")[-1]
    assert held["verdict"]["reason"].startswith("version 2 was made live by a person and stays")
    await world.swapping.let_go(reason="a person lets the policy decide")
    await world.swapping.review()
    assert world.live == 4
    assert [line["reason"] for line in world.lines("operator")] == [
        "version 2 was promoted by a person",
        "a person lets the policy decide",
    ]


async def test_person_cannot_make_live_what_is_not_there_or_does_not_load(tmp_path):
    world = await promoted(tmp_path, AlwaysSwap(Options()), fail_swaps_to=(3,))
    with pytest.raises(CheckpointError, match="version 9 is not there"):
        await world.swapping.choose(9, reason="nine")
    world.draft(3)
    with pytest.raises(BackendError, match="refused version 3"):
        await world.swapping.choose(3, reason="three")
    assert world.live == 2 and not world.swapping.pinned


async def test_drift_asks_for_fresh_data_and_falls_back_to_what_did_better_there(tmp_path):
    world = await promoted(tmp_path, AlwaysSwap(Options()))
    world.draft(3)
    await world.serve(110)
    assert world.live == 3 and world.fresh_asked == 0
    world.backend._noise["", 3] = 0.1  # from now on it accepts nearly nothing
    await world.serve(60)
    assert world.fresh_asked == 1
    [line] = world.lines("drift")
    assert line["drift"]["score"] >= line["drift"]["threshold"]
    assert world.live == 2
    rolled = [one for one in world.lines("verdict") if one["verdict"]["action"] == "roll_back"]
    assert rolled[0]["verdict"]["reason"].startswith(
        "acceptance of version 3 falls for the traffic"
    )


async def test_drift_of_a_small_tenant_moves_nobody_elses_drafter(tmp_path):
    world = await promoted(tmp_path, AlwaysSwap(Options()))
    world.draft(3)
    await world.serve(110)
    world.traffic._drift["small"] = world.traffic._drift[""]
    for _ in range(60):
        world.traffic._drift["small"].observe(0.1)
    await world.swapping.review()
    assert world.live == 3 and world.fresh_asked == 1


async def test_every_logged_verdict_is_found_again_by_replaying_its_evidence(tmp_path):
    world = await promoted(tmp_path, CanarySwap(CanaryOptions(share=0.3)))
    world.draft(3, b"noise", scored=0.9)
    await world.serve(80)
    world.draft(4, scored=0.9)
    await world.serve(80)
    lines = world.lines("verdict")
    assert len(lines) >= 3
    for line in lines:
        evidence, verdict = read_evidence(line)
        assert world.policy.decide(evidence) == verdict
