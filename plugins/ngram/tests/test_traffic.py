"""Drafts from the answers of finished requests."""

from __future__ import annotations

import random

import pytest

from aurora_ngram.text_index import BYTES_PER_TOKEN
from plugins.ngram.tests.conftest import answer, request


def test_an_answer_is_drafted_into_other_requests(make_drafter):
    drafter = make_drafter(min_confidence=0.0)
    question = request([40, 1, 2, 3])
    [before] = drafter.propose([question])
    drafter.observe(answer([30, 31, 1, 2, 3, 4, 5, 6, 7, 8], prompt_len=2))
    [after] = drafter.propose([question])
    assert before.token_ids == []
    assert after.token_ids == [4, 5, 6, 7, 8]


def test_the_first_token_of_an_answer_is_found_by_the_end_of_its_prompt(make_drafter):
    drafter = make_drafter(min_confidence=0.0)
    drafter.observe(answer([10, 11, 12, 13, 20, 21, 22], prompt_len=4))
    [proposal] = drafter.propose([request([9, 11, 12, 13], depth=3)])
    assert proposal.token_ids == [20, 21, 22]


def test_prompts_are_kept_only_as_far_as_they_are_compared(make_drafter):
    drafter = make_drafter(max_ngram=4, min_confidence=0.0)
    drafter.observe(answer([*range(30), 50, 51, 52], prompt_len=30))
    [early] = drafter.propose([request([5, 6, 7], request_id="early")])
    [late] = drafter.propose([request([26, 27], depth=2, request_id="late")])
    assert early.token_ids == []
    assert late.token_ids == [28, 29]


def test_a_draft_does_not_run_from_one_answer_into_the_next(make_drafter):
    drafter = make_drafter(min_confidence=0.0)
    drafter.observe(answer([1, 2, 3]))
    drafter.observe(answer([4, 5, 6]))
    [proposal] = drafter.propose([request([9, 1, 2])])
    assert proposal.token_ids == [3]
    [proposal] = drafter.propose([request([3, 4], request_id="across")])
    assert proposal.token_ids == []


def test_what_many_answers_say_outweighs_one(make_drafter):
    drafter = make_drafter()
    for follower in (7, 7, 7, 8):
        drafter.observe(answer([1, 2, follower]))
    [proposal] = drafter.propose([request([30, 1, 2], depth=1)])
    assert proposal.token_ids == [7]


def test_the_own_text_counts_beside_the_others(make_drafter):
    drafter = make_drafter()
    drafter.observe(answer([1, 2, 3, 50]))
    # A longer match in the own text.
    [proposal] = drafter.propose([request([60, 61, 1, 2, 3, 40, 60, 61, 1, 2, 3], depth=1)])
    assert proposal.token_ids == [40]


def test_without_sharing_other_requests_change_nothing(make_drafter):
    drafter = make_drafter(share_traffic=False)
    drafter.observe(answer([1, 2, 3, 4, 5, 6]))
    [proposal] = drafter.propose([request([9, 1, 2, 3])])
    assert proposal.token_ids == []


def test_tokens_that_the_target_lacks_are_never_drafted(make_drafter):
    drafter = make_drafter()
    drafter.observe(answer([1, 2, 3, 64, 5]))
    [proposal] = drafter.propose([request([9, 1, 2])])
    assert proposal.token_ids == []


def test_an_empty_trace_is_taken(make_drafter):
    drafter = make_drafter()
    drafter.observe(answer([]))
    assert drafter.propose([request([1, 2])])[0].token_ids == []


def test_equal_calls_in_equal_order_give_equal_drafts(make_drafter):
    def run() -> list:
        draw = random.Random(11)
        drafter, proposals = make_drafter(num_branches=3), []
        for number in range(30):
            text = [draw.randrange(5) for _ in range(30)]
            one = request(text, request_id=str(number), max_nodes=9)
            proposals += drafter.propose([one])
            drafter.forget(str(number))
            drafter.observe(answer(text, prompt_len=4))
        return proposals

    first = run()
    assert first == run()
    assert sum(len(proposal.token_ids) for proposal in first) > 20


@pytest.mark.parametrize("num_answers", [3, 40])
def test_the_oldest_answers_are_forgotten_when_memory_is_used_up(make_drafter, num_answers):
    drafter = make_drafter(traffic_bytes="1 MiB", min_ngram=3)
    room = (1 << 20) // BYTES_PER_TOKEN
    drafter.observe(answer([1, 2, 3, 4, 5, 6]))
    draw = random.Random(2)
    for _ in range(num_answers):
        drafter.observe(answer([10 + draw.randrange(50) for _ in range(300)]))
    drafter.observe(answer([7, 8, 9, 6, 5, 4]))
    oldest, newest = drafter.propose(
        [
            request([1, 2, 3], depth=1, request_id="oldest"),
            request([7, 8, 9], depth=1, request_id="newest"),
        ]
    )
    assert oldest.token_ids == ([4] if 301 * num_answers + 14 <= room else [])
    assert newest.token_ids == [6]
    assert (num_answers == 40) == (301 * num_answers + 14 > room)
