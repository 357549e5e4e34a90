"""What a suite says when its author left out the one fixture it cannot do without."""

from __future__ import annotations

from typing import NoReturn


def missing_fixture(name: str, what: str) -> NoReturn:
    """Raise NotImplementedError with what the author of a suite has to provide."""
    raise NotImplementedError(f"override the fixture `{name}` in your Test class: {what}")
