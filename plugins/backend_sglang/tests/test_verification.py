"""Trees of draft tokens, read from the links in which SGLang writes them."""

from __future__ import annotations

from aurora_backend_sglang.engine.verification import ROOT, read_draft, without_filler


def test_a_chain_is_the_tree_with_one_child_each() -> None:
    draft = read_draft([9, 5, 6, 7], [1, 2, 3, -1], [-1, -1, -1, -1])
    assert draft.tokens == [5, 6, 7]
    assert draft.parents == [ROOT, 0, 1]
    assert draft.depths == [1, 2, 3]
    assert draft.slots == [1, 2, 3]


def test_siblings_hang_below_one_parent() -> None:
    #  9 -> 5 -> 7, 8
    #    -> 6 -> 4
    draft = read_draft(
        tokens=[9, 5, 6, 7, 8, 4],
        first_child=[1, 3, 5, -1, -1, -1],
        next_sibling=[-1, 2, -1, 4, -1, -1],
    )
    assert draft.tokens == [5, 6, 7, 8, 4]
    assert draft.parents == [ROOT, ROOT, 0, 0, 1]
    assert draft.depths == [1, 1, 2, 2, 2]


def test_nodes_that_no_link_leads_to_are_padding() -> None:
    draft = read_draft([9, 5, 0, 6], [1, 3, -1, -1], [-1, -1, -1, -1])
    assert draft.tokens == [5, 6]
    assert draft.parents == [ROOT, 0]
    assert draft.slots == [1, 3]


def test_a_root_alone_is_a_plain_step() -> None:
    draft = read_draft([9], [-1], [-1])
    assert (draft.tokens, draft.parents, draft.slots) == ([], [], [])


def test_what_a_table_of_ngrams_is_filled_up_with_is_left_out() -> None:
    #  9 -> 5 -> 0
    #    -> 0, 0, 0   filler
    draft = read_draft([9, 5, 0, 0, 0, 0], [1, 2, -1, -1, -1, -1], [-1, 3, -1, 4, 5, -1])
    left = without_filler(draft, used=())
    assert (left.tokens, left.parents) == ([5, 0], [ROOT, 0])
    assert (left.depths, left.slots) == ([1, 2], [1, 2])


def test_filler_that_was_accepted_by_chance_stays() -> None:
    draft = read_draft([9, 5, 0, 0], [1, -1, -1, -1], [-1, 2, 3, -1])
    left = without_filler(draft, used=(2,))
    assert (left.tokens, left.slots) == ([5, 0], [1, 2])


def test_a_token_0_with_children_is_a_proposal() -> None:
    draft = read_draft([9, 0, 5], [1, 2, -1], [-1, -1, -1])
    assert without_filler(draft, used=()) == draft
