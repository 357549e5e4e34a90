"""What an engine is told at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aurora_core.lineages import LineageRule
from aurora_core.records import DraftVersion, Needs, TargetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """Everything an engine is told at start. Serialisable: it crosses a process boundary."""

    target: TargetSpec
    speculator: str
    """Registered name."""
    speculator_options: Mapping[str, object]
    plugins: tuple[str, ...] | None
    """Plugins to load in the engine process; None loads all installed."""
    needs: Needs
    num_speculative_tokens: int
    versions_dir: str
    """The only folder that drafters are loaded from."""
    initial_version: DraftVersion | None
    sink: str | None
    """Registered name of the trace sink that the engine writes to; None records nothing."""
    sink_options: Mapping[str, object]
    run_dir: str
    """Logs and sockets of the engine go below this folder."""
    seed: int
    observed_sink: str | None = None
    """Registered name of a trace sink, with the same `sink_options`, that may be read at start:
    drafters that learn by `observe` are shown what it holds. None reads nothing."""
    lineages: tuple[LineagePlan, ...] = ()
    """Further lineages beside the default one, which all of the above describes. Only given to
    engines that provide `holds_lineages`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineagePlan:
    """One lineage that an engine serves beside the default one. Fields as in `ServePlan`."""

    rule: LineageRule
    """Its name, and which requests are its own."""
    speculator: str
    speculator_options: Mapping[str, object]
    needs: Needs
    num_speculative_tokens: int
    versions_dir: str
    initial_version: DraftVersion | None
    sink: str | None
    sink_options: Mapping[str, object]
    """Of a sink of its own: a lineage learns from the requests that it served."""
    observed_sink: str | None = None
