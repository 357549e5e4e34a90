"""The built-in generator: an endless, seeded stream of prompts in five domains."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Literal

from aurora_core.errors import ConfigError
from aurora_core.traffic.prompts import (
    chat_messages,
    code_tasks,
    finance_questions,
    math_problems,
    random_text,
    sql_questions,
)
from aurora_core.traffic.prompts.prompt import Prompt

Split = Literal["train", "holdout"]
Order = Literal["mixed", "ordered"]

DOMAINS: Mapping[str, Callable[[Random], str]] = {
    "math": math_problems.draw,
    "sql": sql_questions.draw,
    "code": code_tasks.draw,
    "finance": finance_questions.draw,
    "chat": chat_messages.draw,
}
"""Domain -> function that writes one prompt."""

ARTIFICIAL: Mapping[str, Callable[[Random], str]] = {"random": random_text.draw}
"""The same for traffic that nobody has: part of a stream only where it is named."""

_HOLDOUT_SHARE = 8
"""One wording in so many is held out."""

_MAX_REPEATS = 2000
"""Draws without a new prompt after which a domain counts as used up and starts over."""

_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")


def generate(
    domains: Sequence[str] = tuple(DOMAINS),
    *,
    order: Order = "mixed",
    seed: int = 0,
    split: Split = "train",
    num_prompts: int | None = None,
    block: int = 200,
) -> Iterator[Prompt]:
    """Yield prompts; none repeats before its domain is used up.

    What a domain yields depends on the seed and the split alone, not on the other domains.

    Args:
        domains: keys of `DOMAINS` or of `ARTIFICIAL`.
        order: `mixed` takes the domains in shuffled rounds, so that each has an equal share;
            `ordered` takes them one after the other, as a shift of traffic would.
        seed: equal seeds give equal prompts.
        split: the side of the held-out split; the sides share no wording.
        num_prompts: end after so many; `ordered` then gives each domain one block.
        block: prompts of a domain before `ordered` moves on, when `num_prompts` is None.

    Raises:
        ConfigError: no domain, or one that does not exist.
    """
    unknown = [name for name in domains if name not in DOMAINS and name not in ARTIFICIAL]
    if unknown or not domains:
        wrong = f"there is no prompt domain {unknown[0]!r}" if unknown else "no prompt domain given"
        raise ConfigError(f"{wrong}; the generator has {', '.join([*DOMAINS, *ARTIFICIAL])}")
    streams = {name: _domain(name, seed, split) for name in domains}
    names = _mixed(domains, seed) if order == "mixed" else _ordered(domains, num_prompts, block)
    return (next(streams[name]) for name in itertools.islice(names, num_prompts))


def split_of(text: str) -> Split:
    """Return the side of the split a prompt belongs to.

    Decided by the wording with its numbers left out, so that a held-out prompt is never a
    training prompt with other numbers.
    """
    wording = _DIGITS.sub("#", text)
    digest = hashlib.sha256(wording.encode()).digest()
    return "holdout" if digest[0] % _HOLDOUT_SHARE == 0 else "train"


def _domain(name: str, seed: int, split: Split) -> Iterator[Prompt]:
    # A text seed: random hashes it the same way in every process, and no two streams share one.
    random = Random(f"{seed}/{name}/{split}")
    draw = DOMAINS[name] if name in DOMAINS else ARTIFICIAL[name]
    seen: set[str] = set()
    repeats = 0
    while True:
        text = draw(random)
        if split_of(text) != split:
            continue
        if text in seen and repeats < _MAX_REPEATS:
            repeats += 1
            continue
        if text in seen:
            seen.clear()
        repeats = 0
        seen.add(text)
        yield Prompt(name, text)


def _mixed(domains: Sequence[str], seed: int) -> Iterator[str]:
    random = Random(f"{seed}/mixed")
    while True:
        yield from random.sample(list(domains), len(domains))


def _ordered(domains: Sequence[str], num_prompts: int | None, block: int) -> Iterator[str]:
    if num_prompts is not None:
        block = -(-num_prompts // len(domains))
    while True:
        for name in domains:
            yield from itertools.repeat(name, block)
