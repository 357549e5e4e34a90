"""Verdicts on versions that draft unused beside live requests, and what becomes of them."""

from __future__ import annotations

import dataclasses

import pytest

from aurora_core.config import GuardSection
from aurora_core.controller.evidence import LiveTraffic
from aurora_core.controller.serving_stats import as_shadowed
from aurora_core.interfaces import Options
from aurora_core.policies import AlwaysSwap, Guard, ShadowOptions, ShadowSwap
from aurora_core.records import NO_DRAFTER, Evidence, Holdout, ShadowStats, Trial
from aurora_core.wire import from_json, to_json
from tests.unit import test_controller_evidence as traffic_of
from tests.unit.test_never_worse import POISONS, World, promoted
from tests.unit.test_policies_guard import draft, evidence, stats


def shadow(**options):
    return ShadowSwap(ShadowOptions(**options))


def trial(challenger, live, *, share=0.25, is_shadow=True):
    return Trial(
        version=challenger.version, share=share, seconds=60.0, challenger=challenger, live=live,
        shadow=is_shadow,
    )  # fmt: skip


def test_candidate_first_drafts_beside_a_share():
    verdict = shadow(share=0.5).decide(evidence(draft(2)))
    assert (verdict.action, verdict.share) == ("shadow", 0.5)
    assert verdict.reason == "version 2 drafts beside 50% of the requests on trial"


@pytest.mark.parametrize(
    ("length", "requests", "action", "words"),
    [
        (2.6, 40, "promote", "would make +30.0% tokens per step against version 1 in 40 requests"),
        (1.2, 40, "drop", "never above 0%"),
        (2.05, 40, "shadow", "with 95% confidence"),
        (2.05, 100, "drop", "not surely better in 100 requests"),
        (2.6, 5, "shadow", "has drafted beside 5 requests on trial beside 200 of version 1"),
    ],
)
def test_acceptance_in_the_shadow_decides_by_a_sequential_test(length, requests, action, words):
    found = trial(stats(2, length=length, otps=0.0, requests=requests), stats(1, requests=200))
    verdict = shadow().decide(evidence(draft(2), trial=found))
    assert verdict.action == action and words in verdict.reason


@pytest.mark.parametrize(("length", "action"), [(1.6, "promote"), (1.3, "shadow"), (1.05, "drop")])
def test_without_a_drafter_the_acceptance_length_itself_must_be_worth_it(length, action):
    found = trial(stats(2, length=length, requests=40), stats(NO_DRAFTER, length=1.0, spread=0.0))
    verdict = shadow().decide(evidence(draft(2), None, trial=found))
    assert verdict.action == action
    assert verdict.numbers["min_gain"] == pytest.approx(0.25)


def test_trial_on_served_requests_is_none_in_the_shadow():
    found = trial(stats(2, length=3.0), stats(1), is_shadow=False)
    assert shadow().decide(evidence(draft(2), trial=found)).action == "shadow"


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_drafter_that_failed_in_the_shadow_is_dropped(share):
    found = trial(stats(2, requests=0), stats(1, requests=300), share=share)
    verdict = shadow().decide(evidence(draft(2), trial=found))
    assert verdict.action == "drop" and "has drafted beside none of 300" in verdict.reason


def test_request_is_counted_as_its_shadow_would_have_served_it():
    seen = ShadowStats(
        version=7, num_steps=5, num_drafted=15, accepted_per_position=(5, 3), draft_s=0.1
    )
    served = dataclasses.replace(traffic_of.request(1, accepted=2, steps=10), shadow=seen)
    found = as_shadowed(from_json(type(served), to_json(served)))
    assert (found.num_steps, found.accepted_per_position) == (5, (5, 3))
    assert (found.min_draft_version, found.max_draft_version) == (7, 7)
    assert found.decode_s == 0.0, "nobody knows how fast it would have been"
    with pytest.raises(ValueError, match="no drafter was in the shadow of request r"):
        as_shadowed(traffic_of.request(1))


def test_trial_in_the_shadow_compares_the_shadows_with_what_is_live():
    traffic = LiveTraffic(started=0.0)
    traffic.serve_first(traffic_of.draft(1))
    seen = ShadowStats(
        version=2, num_steps=5, num_drafted=15, accepted_per_position=(10,), draft_s=0.1
    )
    shadowed = dataclasses.replace(traffic_of.request(1, accepted=10, steps=10), shadow=seen)
    traffic.observe([shadowed])
    traffic.begin_trial(2, 0.25, 50.0, shadow=True)
    other = dataclasses.replace(shadowed, shadow=dataclasses.replace(seen, version=3))
    aborted = dataclasses.replace(shadowed, finish_reason="abort")
    nothing = dataclasses.replace(shadowed, shadow=dataclasses.replace(seen, num_steps=0))
    traffic.observe([shadowed, traffic_of.request(1), other, aborted, nothing])
    live = traffic_of.draft(1)
    found = traffic.evidence(traffic_of.draft(2), live=live, previous=None, now=60.0).trial
    assert found is not None and found.shadow
    assert (found.challenger.num_requests, found.challenger.acceptance_length) == (1, 3.0)
    assert (found.live.num_requests, found.live.acceptance_length) == (4, 2.0)
    assert found.challenger.otps == 0.0


async def test_better_version_is_promoted_before_it_has_served_anybody(tmp_path):
    world = await promoted(
        tmp_path, shadow(share=0.5), guard=GuardSection(plain_share=0.0),
        acceptance_per_version=0.12,
    )  # fmt: skip
    world.draft(7, scored=0.9)
    await world.serve(12)
    [route] = world.backend.routes
    assert route.shadow and route.draft.version == 7 and world.live == 2
    assert all(request.max_draft_version != 7 for request in world.backend._requests)
    await world.serve(120)
    assert world.live == 7 and world.backend.routes == ()
    promotion = [one for one in world.lines("verdict") if one["verdict"]["action"] == "promote"][-1]
    assert promotion["verdict"]["numbers"]["gain_lower_bound"] > 0
    assert promotion["evidence"]["trial"]["shadow"] is True


@pytest.mark.parametrize("poison", POISONS)
async def test_poisoned_version_serves_nobody_under_the_shadow_policy(tmp_path, poison):
    world = await promoted(tmp_path, shadow(share=0.5))
    for version in (3, 4):
        world.draft(version, **POISONS[poison])
        await world.serve(80)
    assert set(world.champions) == {2} and world.live == 2
    assert {request.max_draft_version for request in world.backend._requests[60:]} <= {
        2, NO_DRAFTER,
    }  # fmt: skip
    assert world.swapping.trials.draft is None and world.swapping.challenger is None


async def test_verdict_to_shadow_is_a_hold_on_an_engine_that_cannot(tmp_path):
    world = World(tmp_path, shadow(), guard=GuardSection(plain_share=0.0))
    world.swapping.trials.can_shadow = False
    world.draft(1, scored=0.9)
    await world.serve(20)
    assert world.live == NO_DRAFTER and world.swapping.challenger is not None
    assert world.backend.routes == ()


def test_guard_asks_for_what_its_policy_needs():
    assert Guard(shadow(), GuardSection()).needs_shadow
    assert not Guard(AlwaysSwap(Options()), GuardSection()).needs_shadow


def test_held_out_score_below_what_is_worth_it_is_not_even_shadowed():
    weak = Holdout(
        live_version=None, num_anchors=(100,), candidate_accepted=((20,),), live_accepted=()
    )
    assert shadow().decide(evidence(draft(1, weak), None)).action == "drop"


def test_evidence_of_a_shadow_survives_the_log():
    found = trial(stats(2, requests=10), stats(1))
    assert from_json(Evidence, to_json(evidence(draft(2), trial=found))).trial == found
