"""Fill templates with words and numbers.

    "{name} buys {n:3-12} {fruit} and {name2} buys {m:10-500/5,}."

`{name}` draws from the word list `name`; digits at the end of a field draw another, different word
of the same list. `{n:3-12}` draws a whole number, `/5` only multiples of 5, a trailing comma groups
thousands. A field that occurs again repeats its value, numbers by their bare name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from string import Formatter

_NUMBER = re.compile(r"(\d+)-(\d+)(?:/(\d+))?(,?)")


def fill(template: str, words: Mapping[str, Sequence[str]], random: Random) -> str:
    """Return the template with every field replaced by a drawn value.

    A drawn word may have fields of its own.

    Raises:
        KeyError: a field names no word list and carries no range.
    """
    return _fill(template, words, {}, random)


def _fill(
    template: str, words: Mapping[str, Sequence[str]], values: dict[str, str], random: Random
) -> str:
    written: list[str] = []
    for literal, field, spec, _ in Formatter().parse(template):
        written.append(literal)
        if field is None:
            continue
        if field not in values:
            values[field] = _number(spec, random) if spec else _word(field, words, values, random)
        written.append(values[field])
    return "".join(written)


def _number(spec: str, random: Random) -> str:
    found = _NUMBER.fullmatch(spec)
    if found is None:
        raise ValueError(f"{spec!r} is not a range of numbers such as 3-12 or 100-900/50")
    low, high, step = int(found[1]), int(found[2]), int(found[3] or 1)
    number = random.randrange(low, high + 1, step)
    return f"{number:,}" if found[4] else str(number)


def _word(
    field: str, words: Mapping[str, Sequence[str]], values: dict[str, str], random: Random
) -> str:
    name = field.rstrip("0123456789")
    taken = {value for key, value in values.items() if key.rstrip("0123456789") == name}
    while (word := random.choice(words[name])) in taken:
        pass
    return _fill(word, words, values, random) if "{" in word else word


def listed(words: str) -> tuple[str, ...]:
    """Return the words or phrases of a comma separated list."""
    return tuple(words.split(","))


def sentence(text: str) -> str:
    """Return the text with a capital at its beginning."""
    return text[:1].upper() + text[1:]
