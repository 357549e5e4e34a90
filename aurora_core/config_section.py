"""What sections of the run configuration are made of."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """Base of the core sections: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ComponentSection(BaseModel):
    """`name` selects a registered component; every other key is that component's own option.

    A bare name stands for a section without options: `swap_policy: gate`.
    """

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    name: str
    """Registered name, as `aurora plugins` lists it."""

    @property
    def options(self) -> dict[str, Any]:
        """The component's own options as written, not yet validated."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value
