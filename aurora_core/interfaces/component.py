"""What all components share: a class that a name selects, built from options of its own."""

from __future__ import annotations

from typing import ClassVar

from pydantic import ConfigDict

from aurora_core.config_section import StrictNumbers


class Options(StrictNumbers):
    """Base of every component's options: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    serving_only: ClassVar[frozenset[str]] = frozenset()
    """Options of a speculator that say how to draft with given weights: they may change while a
    lineage goes on. A change of any other begins a new one."""


class Component:
    """A class that a config section selects by name and builds from its own options."""

    Config: ClassVar[type[Options]] = Options

    def __init__(self, options: Options) -> None:
        self.options = options
