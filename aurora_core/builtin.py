"""The components every install has, registered through the same hooks as anybody else's."""

from __future__ import annotations

from collections.abc import Iterable

from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_trace_sinks() -> Iterable[Registration]:
    """Register the built-in buffer."""
    yield Registration(
        "spool",
        "aurora_core.spool.sink:SpoolSink",
        "files in a directory: bounded, crash-safe, shareable between machines",
    )


@hookimpl
def aurora_register_swap_policies() -> Iterable[Registration]:
    """Register the built-in judges."""
    yield Registration(
        "always", "aurora_core.policies.simple:AlwaysSwap", "promotes every new version"
    )
    yield Registration(
        "interval",
        "aurora_core.policies.simple:IntervalSwap",
        "promotes at most one version an interval",
    )
    yield Registration(
        "gate",
        "aurora_core.policies.gate:HoldoutGate",
        "promotes a version that accepts more on held-out traces than the live one",
    )
    yield Registration(
        "canary",
        "aurora_core.policies.canary:CanarySwap",
        "tries a version on a share of the requests, then promotes or drops it",
    )
    yield Registration(
        "shadow",
        "aurora_core.policies.shadow:ShadowSwap",
        "has a version draft unused beside live requests, then promotes or drops it",
    )
