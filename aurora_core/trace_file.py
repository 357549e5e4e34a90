"""One trace as one safetensors file: tensors in the body, everything else as JSON in the header.

The header alone tells a reader the request, the draft versions and the length, so that a sink can
sort, split and expire traces without decoding one. Files hold users' text: they are readable by
their owner only. Torch is imported by what touches tensors, not by the module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from pydantic import ValidationError

from aurora_core.errors import TraceError
from aurora_core.records import (
    NO_DRAFTER,
    TRACE_SCHEMA,
    Nodes,
    Rows,
    Sampling,
    Steps,
    Trace,
)
from aurora_core.trace_validation import COLUMNS, first_problem, validate_trace
from aurora_core.wire import first_fault, from_dict, to_dict

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "TraceMetadata",
    "decode_trace",
    "encode_trace",
    "read_trace",
    "trace_metadata",
    "validate_trace",
    "write_private",
    "write_trace",
]

_METADATA_KEY = "aurora_trace"
_GROUPS: dict[str, Any] = {"steps": Steps, "nodes": Nodes, "rows": Rows}
_MAX_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMetadata:
    """What a trace file tells without decoding it."""

    schema: int
    trace_id: str
    request_key: str
    created: float
    """Unix seconds at which the request arrived."""
    target_fingerprint: str
    tokenizer_fingerprint: str
    sampling: Sampling
    finish_reason: Literal["stop", "length", "abort"]
    prompt_len: int
    num_tokens: int
    """Prompt and response."""
    min_draft_version: int
    """Oldest draft version of the speculative steps; `NO_DRAFTER` if there are none."""
    max_draft_version: int
    features: tuple[str, ...]
    aux_layers: tuple[int, ...]
    tenant: str
    route: str


def write_trace(trace: Trace, path: Path) -> int:
    """Write a trace; `path` is complete or absent at any moment. Returns the bytes written.

    Raises:
        OSError: the file cannot be written; nothing is left of it then.
    """
    data = encode_trace(trace)
    write_private(data, path, partial=path.with_name(f".{path.name}.{secrets.token_hex(4)}"))
    return len(data)


def read_trace(path: Path) -> Trace:
    """Read and check one trace, on CPU.

    Raises:
        TraceError: missing, truncated, garbled, inconsistent or of another schema.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"trace file {str(path)!r} cannot be read: {error.strerror}") from error
    return decode_trace(data, name=str(path))


def trace_metadata(path: Path) -> TraceMetadata:
    """Read the header alone; torch is not imported.

    Raises:
        TraceError: missing, truncated, garbled or of another schema. Damage inside the tensors
            shows only when the trace is read.
    """
    try:
        with path.open("rb") as file:
            return _read_header(file, num_bytes=os.fstat(file.fileno()).st_size, name=str(path))
    except OSError as error:
        raise TraceError(f"trace file {str(path)!r} cannot be read: {error.strerror}") from error


def encode_trace(trace: Trace) -> bytes:
    """Return the content of a trace file. Tensors may live on any device."""
    from safetensors.torch import save

    tensors = {"token_ids": trace.token_ids}
    for group, fields in COLUMNS.items():
        record = getattr(trace, group)
        tensors |= {f"{group}.{field}": getattr(record, field) for field in fields}
    tensors |= {f"features.{name}": feature for name, feature in trace.features.items()}
    metadata = json.dumps(to_dict(_metadata(trace)), separators=(",", ":"))
    return save(_independent(tensors), {_METADATA_KEY: metadata})


def decode_trace(data: bytes, name: str) -> Trace:
    """Return the trace in the content of a file, checked.

    Args:
        data: the whole file.
        name: what to call it in errors.

    Raises:
        TraceError: truncated, garbled, inconsistent or of another schema.
    """
    import io

    from safetensors import SafetensorError
    from safetensors.torch import load

    metadata = _read_header(io.BytesIO(data), num_bytes=len(data), name=name)
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise TraceError(f"trace file {name!r} is garbled: {error}") from error
    records: dict[str, Any] = {}
    try:
        for group, fields in COLUMNS.items():
            columns = {field: tensors.pop(f"{group}.{field}") for field in fields}
            records[group] = _GROUPS[group](**columns)
        token_ids = tensors.pop("token_ids")
    except KeyError as error:
        raise TraceError(f"trace file {name!r} lacks the tensor {error.args[0]!r}") from error
    trace = Trace(
        token_ids=token_ids,
        features={key.removeprefix("features."): value for key, value in tensors.items()},
        **records,
        **{
            field.name: getattr(metadata, field.name)
            for field in dataclasses.fields(Trace)
            if field.name not in {"token_ids", "features", *records}
        },
    )
    problem = first_problem(trace)
    if problem is not None:
        raise TraceError(f"trace file {name!r} is inconsistent: {problem}")
    return trace


def write_private(data: bytes, path: Path, *, partial: Path) -> None:
    """Write an owner-only file that appears under its name complete or not at all.

    Traces may be lost with the machine, so nothing is forced to the disk.

    Args:
        data: the content.
        path: the final name; a file of that name is replaced.
        partial: where to write it first, on the same filesystem.

    Raises:
        OSError: it cannot be written; no partial file is left then.
    """
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def _metadata(trace: Trace) -> TraceMetadata:
    drafted = trace.steps.version[trace.steps.version != NO_DRAFTER]
    return TraceMetadata(
        schema=trace.schema,
        trace_id=trace.trace_id,
        request_key=trace.request_key,
        created=trace.created,
        target_fingerprint=trace.target_fingerprint,
        tokenizer_fingerprint=trace.tokenizer_fingerprint,
        sampling=trace.sampling,
        finish_reason=trace.finish_reason,
        prompt_len=trace.prompt_len,
        num_tokens=trace.token_ids.numel(),
        min_draft_version=int(drafted.min()) if drafted.numel() else NO_DRAFTER,
        max_draft_version=int(drafted.max()) if drafted.numel() else NO_DRAFTER,
        features=tuple(sorted(trace.features)),
        aux_layers=trace.aux_layers,
        tenant=trace.tenant,
        route=trace.route,
    )


def _read_header(file: BinaryIO, num_bytes: int, name: str) -> TraceMetadata:
    """Layout: u64 little-endian header length, JSON header, tensor data."""
    try:
        length = int.from_bytes(file.read(8), "little")
        if num_bytes < 8 or length > min(_MAX_HEADER_BYTES, num_bytes - 8):
            raise ValueError("it ends within its header")
        header = json.loads(file.read(length))
        plain = json.loads(header["__metadata__"][_METADATA_KEY])
        schema = plain["schema"]
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise TraceError(f"{name!r} is not a trace file, or is cut short or garbled") from error
    if schema != TRACE_SCHEMA:
        raise TraceError(
            f"trace file {name!r} has schema {schema!r}, this version reads schema {TRACE_SCHEMA}"
        )
    if num_bytes != expected:
        raise TraceError(f"trace file {name!r} has {num_bytes} of {expected} bytes: cut short")
    try:
        return from_dict(TraceMetadata, plain)
    except ValidationError as error:
        where, fault = first_fault(error)
        raise TraceError(f"trace file {name!r} has unfit metadata: {where}: {fault}") from error


def _independent(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors of which no two share memory, as safetensors asks."""
    independent: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        if own.untyped_storage().data_ptr() in storages:
            own = own.clone()
        storages.add(own.untyped_storage().data_ptr())
        independent[name] = own
    return independent
