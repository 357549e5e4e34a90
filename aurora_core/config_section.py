"""What sections of the run configuration are made of."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator


class StrictNumbers(BaseModel):
    """Settings whose numbers are numbers: neither true and false nor infinities."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            is_union = get_origin(annotation) in (Union, UnionType)
            parts = get_args(annotation) if is_union else (annotation,)
            kinds = [one for one in parts if isinstance(one, type)]
            if bool not in kinds and any(issubclass(one, int | float) for one in kinds):
                raise ValueError(f"a number is expected, not {str(value).lower()}")
        return value


class Section(StrictNumbers):
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
