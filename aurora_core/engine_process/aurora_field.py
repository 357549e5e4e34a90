"""The field `aurora`: what any engine takes in that of a request, and tells in that of an answer.

Runs in the engine's environment and imports the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aurora_core.records import RequestStats

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


def describe_answer(stats: RequestStats) -> dict[str, Any]:
    """Return the field of an answer.

    `acceptance_length` is 1 + accepted / steps over all steps of the request, plain ones included;
    `otps` is the output tokens after the first per second of decoding, None without any. Times are
    the engine's own: they hold no network.
    """
    num_accepted = sum(stats.accepted_per_position)
    num_later = stats.num_output_tokens - 1
    described = {
        "request_id": stats.request_id,
        "num_steps": stats.num_steps,
        "num_speculative_steps": stats.num_speculative_steps,
        "num_drafted": stats.num_drafted,
        "accepted_per_position": list(stats.accepted_per_position),
        "acceptance_length": 1 + num_accepted / stats.num_steps if stats.num_steps else 1.0,
        "min_draft_version": stats.min_draft_version,
        "max_draft_version": stats.max_draft_version,
        "ttft_s": stats.ttft_s,
        "decode_s": stats.decode_s,
        "otps": num_later / stats.decode_s if num_later > 0 and stats.decode_s > 0 else None,
    }
    # A server without lineages says nothing about them.
    return {**described, "lineage": stats.lineage} if stats.lineage else described


def _label(fields: Mapping[str, Any], key: str) -> str | None:
    label = fields.get(key)
    if label is not None and (not isinstance(label, str) or len(label) > _MAX_LABEL):
        raise UnfitField(f"`aurora.{key}` must be text of at most {_MAX_LABEL} characters")
    return label
