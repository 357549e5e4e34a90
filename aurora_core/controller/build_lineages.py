"""From a configuration with lineages to the parts of each, and to what the engine is told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aurora_core.components import build_component, run_defaults
from aurora_core.controller.build import Parts, build_policy
from aurora_core.errors import ConfigError
from aurora_core.interfaces import LineagePlan
from aurora_core.lineages import shown_name, union_of_needs
from aurora_core.negotiation import negotiate

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.controller.run_directory import RunDirectory
    from aurora_core.interfaces import Backend
    from aurora_core.records import DraftVersion


def check_holds_lineages(config: RunConfig, backend: Backend) -> None:
    """See that an engine can serve all lineages of a configuration at once.

    Raises:
        ConfigError: it serves one kind of drafter.
    """
    if config.lineages and not backend.provides.holds_lineages:
        raise ConfigError(
            f"backend {config.backend.name!r} serves one kind of drafter at a time, and the "
            f"configuration has lineages ({', '.join(config.lineages)}); use backend: torch, or "
            "start one run for each with a proxy before them"
        )


def build_lineages(default: Parts) -> tuple[Parts, ...]:
    """Return the parts of every lineage but the default one, whose target and engine they share.

    Raises:
        AuroraError: the first thing that keeps one of them from running.
    """
    check_holds_lineages(default.config, default.backend)
    lineages = tuple(_build(default, name) for name in default.config.lineages)
    everybody = (default, *lineages)
    union_of_needs((one.lineage, one.speculator.needs) for one in everybody)
    places: dict[str, str] = {}
    for one in everybody:
        other = places.setdefault(one.sink.url, one.lineage)
        if other != one.lineage:
            raise ConfigError(
                f"lineages {shown_name(other)!r} and {one.lineage!r} would write their traces to "
                f"the same place, {one.sink.url!r}; give one of them a trace_sink of its own"
            )
    return lineages


def _build(default: Parts, name: str) -> Parts:
    config, plugins = default.config.of_lineage(name), default.plugins
    try:
        speculator = build_component(
            plugins, "speculators", config.speculator, target=default.target
        )
        agreement = negotiate(
            speculator,
            default.backend,
            speculator_name=config.speculator.name,
            backend_name=config.backend.name,
        )
        return replace(
            default,
            lineage=name,
            config=config,
            speculator=speculator,
            backend=default.backend.lineage(name),
            sink=build_component(
                plugins,
                "trace_sinks",
                config.trace_sink,
                defaults=run_defaults(config, "trace_sinks"),
            ),
            policy=build_policy(config, plugins, default.backend),
            agreement=agreement,
        )
    except ConfigError as error:
        raise ConfigError(f"lineage {name!r}: {error}") from error


def plan_lineage(
    parts: Parts, directory: RunDirectory, rule_of: RunConfig, *, initial: DraftVersion | None
) -> LineagePlan:
    """Return what the engine is told of one lineage.

    Args:
        parts: of the lineage.
        directory: its own.
        rule_of: the configuration of the whole run, which says whose requests are its own.
        initial: version to serve from the start.
    """
    config = parts.config
    return LineagePlan(
        rule=rule_of.lineages[parts.lineage].rule(parts.lineage),
        speculator=config.speculator.name,
        speculator_options=parts.speculator.options.model_dump(mode="json"),
        needs=parts.speculator.needs,
        num_speculative_tokens=config.num_speculative_tokens,
        versions_dir=str(directory.versions),
        initial_version=initial,
        sink=config.trace_sink.name,
        sink_options=parts.sink.options.model_dump(mode="json"),
        observed_sink=config.trace_sink.name,
    )
