"""The `lineages` of the run configuration: several kinds of drafters at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from aurora_core.config_section import ComponentSection, Section
from aurora_core.lineages import DEFAULT_LINEAGE, LineageRule

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


class LineageSection(Section):
    """One more kind of drafters beside the one that the top level describes, by its name.

    With versions, a learner, a swap policy and traces of its own. It serves the requests of its
    `tenants` and `routes`, or a `share` of those that no lineage matches; without any of these,
    requests that name it.
    """

    tenants: tuple[str, ...] = ()
    """Tenants whose requests it serves; with routes as well, both must fit. The first lineage that
    fits wins."""
    routes: tuple[str, ...] = ()
    """Routes whose requests it serves."""
    share: float = Field(0.0, ge=0, le=1)
    """Share of the requests that no tenant or route decides, by a hash of the prompt: equal prompts
    always meet the same lineage."""
    speculator: ComponentSection
    """Drafter algorithm and its options."""
    swap_policy: ComponentSection | None = None
    """Judge of its versions; null takes the run's."""
    num_speculative_tokens: int | None = Field(None, ge=1)
    """Draft tokens per verification step, at most; null takes the run's."""
    learner: Mapping[str, Any] = {}
    """Settings of `learner` that differ from the run's."""
    trace_sink: ComponentSection | None = None
    """Buffer of its own traces; null takes the run's kind, in the lineage's folder."""

    @model_validator(mode="after")
    def _one_kind_of_rule(self) -> Self:
        if self.share and (self.tenants or self.routes):
            raise ValueError("a lineage has either tenants and routes, or a share, not both")
        return self

    def rule(self, name: str) -> LineageRule:
        """Return which requests are this lineage's."""
        return LineageRule(name=name, tenants=self.tenants, routes=self.routes, share=self.share)


def check_lineages(lineages: Mapping[str, LineageSection]) -> None:
    """See that names can be folders and that shares leave something.

    Raises:
        ValueError: they cannot, in a sentence.
    """
    for name in lineages:
        if name == DEFAULT_LINEAGE:
            raise ValueError(
                f"lineages.{DEFAULT_LINEAGE}: that is what the top level of the configuration "
                "describes; choose another name"
            )
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"lineages.{name}: names are lowercase letters, digits, '_' and '-', at most 40, "
                "and begin with a letter"
            )
    shares = sum(section.share for section in lineages.values())
    if shares > 1 + 1e-9:
        raise ValueError(f"lineages: their shares add up to {shares:g}, which is more than 1")
