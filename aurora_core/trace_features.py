"""Whether a speculator can learn from a trace: of its target, with its features, all finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from aurora_core.errors import TraceError

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_core.records import TargetSpec, Trace


def check_features(
    trace: Trace, target: TargetSpec, widths: Mapping[str, tuple[int, ...]], *, speculator: str
) -> None:
    """Check that a trace is of a target and has what a speculator learns from.

    Args:
        trace: any sound one.
        target: of the speculator.
        widths: name of a feature -> shape of each of its rows.
        speculator: registered name, for the message.

    Raises:
        TraceError: it was made by another target, or lacks a feature or has it in another shape.
    """
    if trace.target_fingerprint != target.fingerprint:
        raise TraceError(
            f"trace {trace.trace_id!r} was made by another target than {target.name!r}; "
            "drop the trace"
        )
    for name, width in widths.items():
        feature = trace.features.get(name)
        if feature is None:
            raise TraceError(
                f"trace {trace.trace_id!r} lacks the feature {name!r} that {speculator!r} learns "
                "from; let the backend record it"
            )
        if tuple(feature.shape) != (len(trace.rows.position), *width):
            raise TraceError(
                f"trace {trace.trace_id!r} has {name!r} of shape {list(feature.shape)}, expected "
                f"{[len(trace.rows.position), *width]}; drop the trace"
            )


def check_finite(trace: Trace, rows: Mapping[str, Tensor]) -> None:
    """Check the rows of a trace that are used.

    Args:
        trace: for the message.
        rows: name of a feature -> its rows.

    Raises:
        TraceError: a value is not finite.
    """
    for name, tensor in rows.items():
        if not bool(tensor.isfinite().all()):
            raise TraceError(
                f"trace {trace.trace_id!r} has values in {name!r} that are not finite; "
                "drop the trace"
            )
