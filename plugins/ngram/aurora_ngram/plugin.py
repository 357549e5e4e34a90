"""Registers the plugin's components; imports nothing of them."""

from __future__ import annotations

from collections.abc import Iterable

from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_speculators() -> Iterable[Registration]:
    """Name the n-gram speculator."""
    yield Registration(
        name="ngram",
        target="aurora_ngram.speculator:NgramSpeculator",
        summary="n-grams: what followed the same tokens before; nothing is trained",
    )
