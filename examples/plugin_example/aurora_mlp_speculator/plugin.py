"""The hooks. Every `aurora` command loads this module, so it imports no component and no torch."""

from __future__ import annotations

from collections.abc import Iterable

from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_speculators() -> Iterable[Registration]:
    """Name the speculator; its module is imported when a configuration selects it."""
    yield Registration(
        name="mlp",
        target="aurora_mlp_speculator.speculator:MlpSpeculator",
        summary="MLP speculator: one small layer per draft token, fed with the tokens drafted",
    )
