"""The field `aurora` of a request to an engine's own server: what any engine takes in it.

Runs in the engine's environment and imports the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIELD = "aurora"
_KEYS = frozenset({"drafter", "record", "tenant", "route"})
_MAX_LABEL = 128


class UnfitField(Exception):
    """A request asks for what this engine cannot do; the message is for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuroraField:
    """What a client wishes for its request."""

    drafter: Any = "live"
    """As it came, `live` if nothing did: engines differ in what they can give."""
    record: bool = True
    """Whether the request may leave a trace."""
    tenant: str | None = None
    route: str | None = None


def read_field(value: Any) -> AuroraField:
    """Read the field; None, as an absent one, wishes for nothing.

    Raises:
        UnfitField: it is no object, or has an unknown key or an unfit value.
    """
    fields = {} if value is None else value
    if not isinstance(fields, Mapping):
        raise UnfitField("`aurora` must be an object")
    unknown = sorted(fields.keys() - _KEYS)
    if unknown:
        raise UnfitField(f"`aurora.{unknown[0]}` is not known")
    record = fields.get("record", True)
    if not isinstance(record, bool):
        raise UnfitField("`aurora.record` must be true or false")
    drafter = fields.get("drafter")
    return AuroraField(
        drafter="live" if drafter is None else drafter,
        record=record,
        tenant=_label(fields, "tenant"),
        route=_label(fields, "route"),
    )


def _label(fields: Mapping[str, Any], key: str) -> str | None:
    label = fields.get(key)
    if label is not None and (not isinstance(label, str) or len(label) > _MAX_LABEL):
        raise UnfitField(f"`aurora.{key}` must be text of at most {_MAX_LABEL} characters")
    return label
