"""Registers the plugin's components; imports nothing of them."""

from __future__ import annotations

from collections.abc import Iterable

from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_speculators() -> Iterable[Registration]:
    """Name the Medusa speculator."""
    yield Registration(
        name="medusa",
        target="aurora_medusa.speculator:MedusaSpeculator",
        summary="Medusa: heads that each look one token further ahead, from one hidden state",
    )
