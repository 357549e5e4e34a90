"""Registers the plugin's components; imports nothing of them."""

from __future__ import annotations

from collections.abc import Iterable

from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_speculators() -> Iterable[Registration]:
    """Name the EAGLE-3 speculator."""
    yield Registration(
        name="eagle3",
        target="aurora_eagle.speculator:Eagle3Speculator",
        summary="EAGLE-3: one decoder layer over hidden states of three target layers",
    )
