"""Finds where the end of a text stood earlier: an index of n-grams with bounded memory.

Every position remembers the position before it that ends with the same `min_ngram` tokens, so that
all earlier places of an n-gram are a chain, newest first, as in the LZ77 family of compressors.
Appending is constant work, and the oldest texts can be dropped without looking at the others.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SEPARATOR = -1
"""Stands between two texts; equal to no token."""

BYTES_PER_TOKEN = 192
"""Upper bound on the memory of one indexed token: 12 in the arrays, which may hold twice as much
while they wait to be cut, and the rest for the n-gram it ends, if no other has the same."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Places of a text's end, newest first.

    Two lists of numbers instead of a list of pairs: a draft then makes no objects by the hundred,
    which Python would stop to search for garbage.
    """

    lengths: list[int]
    """Equal tokens, from `min_ngram` to `max_ngram`."""
    following: list[int]
    """Position after them: of the token that followed, if there is one."""


class TextIndex:
    """Texts of token ids, one after the other, and where each n-gram in them stands.

    Args:
        min_ngram: tokens that must be equal to be found.
        max_ngram: tokens beyond which nobody asks whether more are equal.
        vocab_size: all token ids are below it.
        max_tokens: room; the oldest texts are dropped when it is used up. None is without limit.
    """

    def __init__(
        self, *, min_ngram: int, max_ngram: int, vocab_size: int, max_tokens: int | None = None
    ) -> None:
        self._min_ngram, self._max_ngram = min_ngram, max_ngram
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._tokens = array("i")
        self._previous = array("q")
        self._offset = 0
        """Position of the first entry of the two arrays."""
        self._first = 0
        """Position of the oldest token that still counts."""
        self._latest: dict[int, int] = {}
        self._texts: deque[int] = deque()
        """Positions behind the end of each text that was added whole, oldest first."""
        self._key, self._key_tokens = 0, 0

    def __len__(self) -> int:
        """Return the tokens held, a separator for each whole text included."""
        return self.end - self._first

    @property
    def end(self) -> int:
        """Position that the next token gets."""
        return self._offset + len(self._tokens)

    @property
    def num_texts(self) -> int:
        """Return the whole texts held."""
        return len(self._texts)

    @property
    def key(self) -> int | None:
        """Return the number of the n-gram at the end; None while the text is shorter."""
        return self._key if self._key_tokens >= self._min_ngram else None

    def append(self, token_ids: Iterable[int]) -> None:
        """Lengthen the text at the end."""
        modulus = self._vocab_size**self._min_ngram
        for token in token_ids:
            self._key = (self._key * self._vocab_size + token) % modulus
            self._key_tokens += 1
            previous = -1
            if self._key_tokens >= self._min_ngram:
                previous = self._latest.get(self._key, -1)
                self._latest[self._key] = self.end
            self._tokens.append(token)
            self._previous.append(previous)

    def add_text(self, token_ids: Sequence[int]) -> None:
        """Take in a whole text, and drop the oldest ones until there is room for it.

        Of a text that is longer than all the room, the end is kept.
        """
        if self._max_tokens is not None:
            token_ids = token_ids[max(len(token_ids) + 1 - self._max_tokens, 0) :]
            while self._texts and len(self) + len(token_ids) + 1 > self._max_tokens:
                self._drop_oldest()
        self.append(token_ids)
        self._tokens.append(SEPARATOR)
        self._previous.append(-1)
        self._key, self._key_tokens = 0, 0
        self._texts.append(self.end)

    def token(self, position: int) -> int | None:
        """Return the token at a position; None at the end of its text."""
        if position >= self.end:
            return None
        token = self._tokens[position - self._offset]
        return None if token == SEPARATOR else token

    def last(self, num_tokens: int) -> list[int]:
        """Return up to so many tokens from the end, oldest first."""
        return self._tokens[max(len(self._tokens) - num_tokens, 0) :].tolist()

    def own_matches(self, limit: int) -> Matches:
        """Return earlier places of this text's end, newest first, `limit` at most."""
        if self.key is None:
            return Matches([], [])
        return self._follow(self._previous[-1], self.last(self._max_ngram), limit)

    def matches(self, key: int, context: Sequence[int], limit: int) -> Matches:
        """Return places of the end of another text, newest first, `limit` at most.

        Args:
            key: the other index's `key`.
            context: its latest tokens, at least `min_ngram`.
        """
        return self._follow(self._latest.get(key, -1), context, limit)

    def _follow(self, position: int, context: Sequence[int], limit: int) -> Matches:
        tokens, previous, offset, first = self._tokens, self._previous, self._offset, self._first
        longest = len(context)
        lengths: list[int] = []
        following: list[int] = []
        while position >= first and len(lengths) < limit:
            index = position - offset
            length, room = self._min_ngram, min(longest, position - first + 1)
            while length < room and tokens[index - length] == context[-1 - length]:
                length += 1
            lengths.append(length)
            following.append(position + 1)
            position = previous[index]
        return Matches(lengths, following)

    def _drop_oldest(self) -> None:
        end = self._texts.popleft()
        modulus = self._vocab_size**self._min_ngram
        key = 0
        text = self._tokens[self._first - self._offset : end - 1 - self._offset]
        for num_tokens, token in enumerate(text, start=1):
            key = (key * self._vocab_size + token) % modulus
            # Entries of newer texts with the same n-gram stay: they stand at later positions.
            if num_tokens >= self._min_ngram and self._latest.get(key, end) < end:
                del self._latest[key]
        self._first = end
        dropped = self._first - self._offset
        if 2 * dropped > len(self._tokens):
            del self._tokens[:dropped], self._previous[:dropped]
            self._offset = self._first
