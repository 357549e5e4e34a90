"""The index finds what a search through all texts finds, and stays within its memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from aurora_ngram.text_index import BYTES_PER_TOKEN, TextIndex


def search(texts: list[list[int]], context: list[int], least: int, most: int) -> list[tuple]:
    """Return (equal tokens, token that followed) of every place, the newest first."""
    found = []
    for text in texts:
        for end in range(1, len(text) + 1):
            length = 0
            while length < min(most, end, len(context)):
                if text[end - 1 - length] != context[-1 - length]:
                    break
                length += 1
            if length >= least:
                found.append((length, text[end] if end < len(text) else None))
    return found[::-1]


def found_by(index: TextIndex, matches) -> list[tuple]:
    places = zip(matches.lengths, matches.following, strict=True)
    return [(length, index.token(following)) for length, following in places]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("least", [1, 2, 3])
def test_places_in_other_texts_are_those_of_a_full_search(seed, least):
    draw = random.Random(seed)
    texts = [[draw.randrange(3) for _ in range(draw.randrange(30))] for _ in range(12)]
    index = TextIndex(min_ngram=least, max_ngram=6, vocab_size=4)
    for text in texts:
        index.add_text(text)
    own = TextIndex(min_ngram=least, max_ngram=6, vocab_size=4)
    context = [draw.randrange(3) for _ in range(10)]
    own.append(context)
    matches = index.matches(own.key, own.last(6), limit=10**6)
    expected = search(texts, context, least, 6)
    assert len(expected) > 0
    assert found_by(index, matches) == expected
    few = index.matches(own.key, own.last(6), limit=3)
    assert found_by(index, few) == expected[:3]


@pytest.mark.parametrize("seed", range(5))
def test_places_in_the_own_text_are_those_of_a_full_search(seed):
    draw = random.Random(seed)
    text = [draw.randrange(4) for _ in range(60)]
    index = TextIndex(min_ngram=2, max_ngram=5, vocab_size=4)
    for end in range(1, len(text) + 1):
        index.append(text[end - 1 : end])
        expected = search([text[:end]], text[:end], 2, 5)
        # The newest place is the end itself.
        assert found_by(index, index.own_matches(10**6)) == expected[1:]


def test_what_is_left_after_dropping_is_still_found():
    draw = random.Random(1)
    index = TextIndex(min_ngram=2, max_ngram=6, vocab_size=4, max_tokens=100)
    texts: list[list[int]] = []
    for _ in range(60):
        texts.append([draw.randrange(4) for _ in range(draw.randrange(1, 30))])
        index.add_text(texts[-1])
        assert len(index) <= 100
        held = texts[len(texts) - index.num_texts :]
        assert len(index) == sum(len(text) + 1 for text in held)
        own = TextIndex(min_ngram=2, max_ngram=6, vocab_size=4)
        own.append([draw.randrange(4) for _ in range(8)])
        matches = index.matches(own.key, own.last(6), limit=10**6)
        assert found_by(index, matches) == search(held, own.last(8), 2, 6)
    assert index.num_texts < 60


def test_the_oldest_text_is_dropped_first():
    index = TextIndex(min_ngram=1, max_ngram=4, vocab_size=64, max_tokens=9)
    for text in ([1, 2], [3, 4], [5, 6]):
        index.add_text(text)
    assert index.num_texts == 3
    index.add_text([7, 8])
    found = {key: bool(index.matches(key, [key], limit=9).lengths) for key in (1, 3, 5, 7)}
    assert found == {1: False, 3: True, 5: True, 7: True}


def test_of_a_text_larger_than_all_the_room_the_end_is_kept():
    index = TextIndex(min_ngram=1, max_ngram=4, vocab_size=64, max_tokens=5)
    index.add_text(range(20))
    assert len(index) == 5
    assert index.matches(15, [15], limit=9).lengths == []
    assert index.matches(16, [16], limit=9).lengths == [1]


def test_memory_stays_within_what_is_allowed_for_texts_without_a_common_ngram():
    num_bytes = 1 << 20
    draw = random.Random(0)
    texts = [[draw.randrange(150_000) for _ in range(400)] for _ in range(60)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    index = TextIndex(
        min_ngram=3, max_ngram=16, vocab_size=150_000, max_tokens=num_bytes // BYTES_PER_TOKEN
    )
    for text in texts:
        index.add_text(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.num_texts < len(texts)
    assert num_bytes / 4 < peak - before <= num_bytes
