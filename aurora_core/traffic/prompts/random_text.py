"""Prompts that mean nothing: random letters, digits and signs, as no user would write them.

The worst traffic for a drafter: nothing in a prompt says what comes next. Sampled with a high
temperature, the answers are as random as the prompts.
"""

from __future__ import annotations

import string
from random import Random

_SIGNS = string.ascii_letters + string.digits + string.punctuation
_FEWEST, _MOST = 12, 40
_LONGEST = 9


def draw(random: Random) -> str:
    """Return one prompt of 12 to 40 random words."""
    lengths = [random.randint(1, _LONGEST) for _ in range(random.randint(_FEWEST, _MOST))]
    return " ".join("".join(random.choices(_SIGNS, k=length)) for length in lengths)
