"""Is a difference found, and is it judged rightly?"""

from __future__ import annotations

import pytest

from aurora_core.errors import BackendError
from aurora_core.traffic.endpoint import Endpoint
from aurora_core.traffic.lossless import LosslessCheck, check_lossless, first_difference
from aurora_core.traffic.prompts import Prompt

PROMPTS = [Prompt("sql", f"prompt {index}") for index in range(4)]


async def check(server, **options):
    async with Endpoint(server.url) as endpoint:
        return await check_lossless(endpoint, PROMPTS, max_tokens=8, **options)


async def test_equal_outputs_are_counted_and_nothing_else(server):
    report = await check(server)
    assert (report.checked, report.mismatches, report.near_ties) == (4, 0, 0)
    assert report.differences == ()
    assert len(server.of_kind("live")) == len(server.of_kind("none")) == 4
    assert all(body["aurora"]["record"] is False for body in server.bodies)
    assert all(body["temperature"] == 0.0 for body in server.bodies)


async def test_a_wrong_token_is_a_mismatch_with_its_evidence(server):
    server.diverge_at, server.tie_gap = 3, 2.0
    report = await check(server)
    assert (report.checked, report.mismatches, report.near_ties) == (4, 4, 0)
    difference = next(one for one in report.differences if one.index == 2)
    assert (difference.position, difference.actual_token) == (3, ord("A"))
    assert difference.expected_token == difference.expected_token_ids[3]
    assert difference.prompt == "prompt 2"
    assert difference.gap == pytest.approx(2.0)
    assert (difference.min_draft_version, difference.max_draft_version) == (4, 5)
    assert difference.actual_token_ids[4:] == difference.expected_token_ids[4:]


async def test_a_difference_between_equally_likely_tokens_is_a_near_tie(server):
    server.diverge_at, server.tie_gap = 3, 0.06
    report = await check(server)
    assert (report.checked, report.mismatches, report.near_ties) == (4, 0, 4)
    assert all(one.is_near_tie and one.gap == pytest.approx(0.06) for one in report.differences)


@pytest.mark.parametrize(("near_tie_gap", "mismatches"), [(0.0, 4), (0.05, 4), (0.07, 0)])
async def test_the_tolerance_decides(server, near_tie_gap, mismatches):
    server.diverge_at, server.tie_gap = 3, 0.06
    assert (await check(server, near_tie_gap=near_tie_gap)).mismatches == mismatches


async def test_a_token_that_is_not_among_the_best_is_a_mismatch_however_close_those_are(server):
    server.tie_gap = 0.0
    async with Endpoint(server.url) as endpoint:
        comparison = LosslessCheck(endpoint, max_tokens=8)
        token_ids = list((await answer(endpoint)).token_ids)
        token_ids[5] = ord("Z")
        difference = await comparison.check(PROMPTS[0], token_ids)
    assert (difference.position, difference.gap, difference.is_near_tie) == (5, None, False)
    assert comparison.report.mismatches == 1


async def answer(endpoint):
    from aurora_core.traffic.endpoint import RequestSettings

    return await endpoint.complete(PROMPTS[0], RequestSettings(max_tokens=8, drafter="none"))


async def test_tokens_known_by_text_only_are_judged_by_the_two_best(server):
    server.diverge_at, server.tie_gap, server.logprob_ids = 3, 0.06, False
    assert (await check(server)).near_ties == 4
    server.tie_gap = 0.6
    assert (await check(server)).mismatches == 4


@pytest.mark.parametrize("logprob_ids", [True, False])
async def test_an_answer_that_ends_early_is_a_mismatch(server, logprob_ids):
    server.tie_gap, server.logprob_ids = 0.0, logprob_ids
    async with Endpoint(server.url) as endpoint:
        comparison = LosslessCheck(endpoint, max_tokens=8)
        token_ids = (await answer(endpoint)).token_ids
        difference = await comparison.check(PROMPTS[0], token_ids[:6])
    assert (difference.position, difference.actual_token) == (6, None)
    assert not difference.is_near_tie


async def test_an_engine_that_does_not_repeat_itself_is_judged_by_its_repetition(server):
    server.diverge_at, server.tie_gap, server.forgetful = 3, 0.06, True
    report = await check(server)
    assert (report.mismatches, report.near_ties) == (0, 4)
    server.tie_gap = 2.0
    assert (await check(server)).mismatches == 4


async def test_failed_requests_are_not_checked(server):
    server.plan = ["500", "", "500"]
    report = await check(server)
    assert (report.checked, report.not_checked) == (2, 2)


async def test_prompts_can_be_checked_at_once(server):
    server.diverge_at = 1
    report = await check(server, concurrency=4)
    assert sorted(one.index for one in report.differences) == [0, 1, 2, 3]


async def test_a_foreign_server_is_refused(server):
    server.extensions = False
    with pytest.raises(BackendError, match="does not report token ids"):
        await check(server)


async def test_a_server_that_speculates_against_orders_is_refused(server):
    server.ignore_drafter = True
    with pytest.raises(BackendError, match="does not answer without speculation on request"):
        await check(server)


def test_first_difference_counts_a_missing_token():
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], [1]) == 0
