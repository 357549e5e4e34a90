"""Drafts from a request's own text: what is found, how sure it is, and where it ends."""

from __future__ import annotations

import math
import random

import pytest

from plugins.ngram.tests.conftest import answer, paths, request

CYCLE = [5, 9, 7, 11, 3, 8]


def test_repeating_text_is_accepted_in_full(make_drafter):
    drafter, text = make_drafter(), CYCLE * 40
    root, start = 3 * len(CYCLE), 0
    num_accepted = num_steps = 0
    while root + 6 < len(text):
        [proposal] = drafter.propose([request(text[start : root + 1], start=start)])
        assert proposal.token_ids == text[root + 1 : root + 6]
        num_accepted, num_steps = num_accepted + 5, num_steps + 1
        start, root = root, root + 6
    assert num_accepted == 5 * num_steps > 100


def test_a_single_place_is_drafted_from(make_drafter):
    text = [1, 2, 3, 4, 5, 6, 7, 20, 21, 2, 3, 4]
    [proposal] = make_drafter(min_confidence=0.0).propose([request(text, depth=4)])
    assert proposal.token_ids == [5, 6, 7, 20]
    assert proposal.parents == [-1, 0, 1, 2]


def test_text_without_repetition_is_not_drafted_for(make_drafter):
    [proposal] = make_drafter().propose([request(range(40))])
    assert proposal.token_ids == []


@pytest.mark.parametrize("length", [1, 2])
def test_an_ngram_shorter_than_the_least_is_not_enough(make_drafter, length):
    text = [1, 2, 3, 30, 31, *[1, 2, 3][3 - length :]]
    [proposal] = make_drafter(min_ngram=3).propose([request(text)])
    assert proposal.token_ids == []
    [proposal] = make_drafter(min_ngram=length).propose([request(text, depth=1)])
    assert proposal.token_ids == [30]


def test_the_longer_match_outweighs_the_newer(make_drafter):
    text = [1, 2, 3, 4, 40, 50, 3, 4, 41, 51, 1, 2, 3, 4]
    [proposal] = make_drafter().propose([request(text, depth=1)])
    assert proposal.token_ids == [40]


def test_what_followed_more_often_is_drafted_with_its_share(make_drafter):
    # After 1 2 came 7 three times and 8 once, each time with a match of two tokens.
    text = [1, 2, 7, 20, 1, 2, 7, 21, 1, 2, 8, 22, 1, 2, 7, 23, 1, 2]
    [proposal] = make_drafter(num_branches=4, min_confidence=0.0).propose(
        [request(text, depth=1, max_nodes=4)]
    )
    assert proposal.token_ids == [7, 8]
    shares = [math.exp(log_prob) for log_prob in proposal.log_probs]
    # One unit of weight is kept for what was never seen.
    assert shares == pytest.approx([3 / 5, 1 / 5])


def test_a_longer_match_is_surer(make_drafter):
    def confidence(length: int) -> float:
        shared = list(range(1, length + 1))
        text = [50, *shared, 40, 41, 51, *shared]
        [proposal] = make_drafter(min_confidence=0.0).propose([request(text, depth=1)])
        return math.exp(proposal.log_probs[0])

    values = [confidence(length) for length in (2, 3, 4, 8)]
    assert values == sorted(values) and values[0] == pytest.approx(0.5) and values[-1] > 0.98


def test_a_draft_ends_where_its_probability_falls(make_drafter):
    # 1 2 3 is followed by 4 always, and then by something else each time.
    text = [1, 2, 3, 4, 20, 1, 2, 3, 4, 21, 1, 2, 3, 4, 22, 1, 2, 3, 4, 23, 1, 2, 3]
    [sure] = make_drafter(min_confidence=0.4).propose([request(text)])
    assert sure.token_ids == [4]
    [unsure] = make_drafter(min_confidence=0.0).propose([request(text)])
    assert len(unsure.token_ids) == 5
    for chosen, limit in ((sure, 0.4), (unsure, 0.0)):
        assert math.exp(sum(chosen.log_probs)) >= limit


def test_branches_share_their_beginning_and_parents_come_first(make_drafter):
    text = [1, 2, 3, 4, 5, 20, 1, 2, 3, 4, 6, 21, 1, 2, 3, 7, 22, 1, 2, 3]
    [proposal] = make_drafter(num_branches=3, min_confidence=0.0).propose(
        [request(text, depth=2, max_nodes=16)]
    )
    assert sorted(paths(proposal)) == [[4], [4, 5], [4, 6], [7], [7, 22]]
    assert all(parent < node for node, parent in enumerate(proposal.parents))


def test_siblings_never_repeat_a_token(make_drafter):
    draw = random.Random(3)
    drafter = make_drafter(num_branches=4, min_confidence=0.0)
    [proposal] = drafter.propose(
        [request([draw.randrange(3) for _ in range(200)], depth=4, max_nodes=60)]
    )
    assert len(proposal.token_ids) > 30
    pairs = list(zip(proposal.parents, proposal.token_ids, strict=True))
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("num_branches", [1, 3])
@pytest.mark.parametrize(("depth", "max_nodes"), [(0, 0), (0, 9), (3, 0), (1, 9), (3, 2), (4, 9)])
def test_limits_of_the_request_hold(make_drafter, num_branches, depth, max_nodes):
    draw = random.Random(0)
    text = [draw.randrange(3) for _ in range(300)]
    drafter = make_drafter(num_branches=num_branches, min_confidence=0.0)
    [proposal] = drafter.propose([request(text, depth=depth, max_nodes=max_nodes)])
    drafted = paths(proposal)
    assert len(drafted) <= max_nodes
    assert max((len(path) for path in drafted), default=0) <= depth
    assert bool(drafted) == bool(depth and max_nodes)


def test_a_call_without_drafts_still_takes_the_text_in(make_drafter):
    text = CYCLE * 3
    [whole] = make_drafter().propose([request(text)])
    drafter = make_drafter()
    [nothing] = drafter.propose([request(text[:10], depth=0)])
    [proposal] = drafter.propose([request(text[9:], start=9)])
    assert nothing.token_ids == []
    assert proposal == whole
    assert len(whole.token_ids) == 5


def test_text_in_pieces_gives_the_drafts_of_the_whole(make_drafter):
    draw = random.Random(5)
    text = [draw.randrange(4) for _ in range(120)]
    drafter, start = make_drafter(), 0
    for root in range(10, 119, 7):
        [pieces] = drafter.propose([request(text[start : root + 1], start=start)])
        [whole] = make_drafter().propose([request(text[: root + 1])])
        assert pieces == whole
        start = root


def test_other_requests_of_the_call_change_nothing(make_drafter):
    draw = random.Random(7)
    texts = {f"request {i}": [draw.randrange(4) for _ in range(40 + i)] for i in range(6)}
    requests = [request(text, request_id=name) for name, text in texts.items()]
    observed = answer([draw.randrange(4) for _ in range(50)])
    alone = []
    for one in requests:
        drafter = make_drafter()
        drafter.observe(observed)
        alone += drafter.propose([one])
    together, backwards = make_drafter(), make_drafter()
    together.observe(observed)
    backwards.observe(observed)
    assert together.propose(requests) == alone
    assert backwards.propose(requests[::-1]) == alone[::-1]
    assert any(proposal.token_ids for proposal in alone)


def test_a_forgotten_request_starts_anew(make_drafter):
    drafter = make_drafter()
    drafter.propose([request(CYCLE * 3)])
    drafter.forget("request")
    drafter.forget("never known")
    start = 3 * len(CYCLE) - 1
    [proposal] = drafter.propose([request([CYCLE[-1], CYCLE[0]], start=start)])
    assert proposal.token_ids == []


def test_a_first_call_in_mid_request_drafts_from_its_window(make_drafter):
    drafter = make_drafter()
    [proposal] = drafter.propose([request(CYCLE * 3, start=1000)])
    assert proposal.token_ids == (CYCLE * 3)[:5]
    # And goes on from there.
    start = 1000 + 3 * len(CYCLE) - 1
    [proposal] = drafter.propose([request([CYCLE[-1], *CYCLE[:2]], start=start)])
    assert proposal.token_ids == (CYCLE * 2)[2:7]


def test_a_text_that_does_not_continue_what_is_known_replaces_it(make_drafter):
    drafter = make_drafter()
    drafter.propose([request(CYCLE * 3)])
    # The same id, from its beginning: nothing of the first text may be left.
    [proposal] = drafter.propose([request([1, 2, CYCLE[0], CYCLE[1]])])
    assert proposal.token_ids == []


def test_running_requests_do_not_draft_from_each_other(make_drafter):
    drafter = make_drafter()
    drafter.propose([request([1, 2, 3, 4, 5], request_id="one")])
    [proposal] = drafter.propose([request([9, 1, 2, 3], request_id="two")])
    assert proposal.token_ids == []
