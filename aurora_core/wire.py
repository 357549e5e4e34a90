"""Records as JSON, for pipes, HTTP and files between processes."""

from __future__ import annotations

import json
from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

Record = TypeVar("Record")


@cache
def _cached_adapter(record_type: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("type", record_type))


def _adapter(record_type: object) -> TypeAdapter[Any]:
    return _cached_adapter(record_type)


def to_json(record: object) -> str:
    """Return one line of JSON for a record of `aurora_core.records` without tensors."""
    # Not `dump_json`: it writes NaN and infinity as null, which no float field reads back.
    return json.dumps(to_dict(record), separators=(",", ":"))


def to_dict(record: object) -> dict[str, Any]:
    """Return a record as JSON-compatible plain data."""
    plain: dict[str, Any] = _adapter(type(record)).dump_python(record, mode="json")
    return plain


def from_json(record_type: type[Record], text: str | bytes) -> Record:
    """Read a record back; raises `pydantic.ValidationError` on anything else."""
    record: Record = _adapter(record_type).validate_json(text)
    return record


def from_dict(record_type: type[Record], plain: object) -> Record:
    """Read a record from plain data; raises `pydantic.ValidationError` on anything else."""
    record: Record = _adapter(record_type).validate_python(plain)
    return record


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return where the first fault of something unreadable is, and what it is.

    The place is made of keys with dots between, and empty where the whole is no record at all.
    """
    first = error.errors(include_url=False)[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"]
