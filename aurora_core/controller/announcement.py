"""What is said and written before any work: what the configuration resolved to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aurora_core.controller import build

if TYPE_CHECKING:
    from aurora_core.controller.run import Run
    from aurora_core.controller.run_directory import RunDirectory
    from aurora_core.interfaces import Component
    from aurora_core.lineages import LineageRule
    from aurora_core.records import DraftVersion


def announce(run: Run, *, wanted_requests: int | None) -> None:
    """Write resolved.yaml and show the banner.

    Args:
        run: not started yet.
        wanted_requests: the run ends after so many, None for no such limit.

    Raises:
        ConfigError: the run directory cannot be written.
    """
    default = run.default
    facts = resolved_facts(run.parts, run.directory, default.found)
    others = run.lineages[1:]
    for one in others:
        own = resolved_facts(one.parts, one.directory, one.found)
        one.directory.write_resolved(one.parts.config, own)
        rule = _whose(run.parts.config.lineages[one.name].rule(one.name))
        facts[f"lineage {one.name}"] = f"{own['speculator']}; {own['drafter']}; serves {rule}"
    run.directory.write_resolved(run.parts.config, facts)
    count = run.traffic.count if run.traffic else None
    if count is None and others:  # the console itself hears of the default lineage alone
        count = run.count_finished
    run.console.banner(
        list(facts.items()),
        live_version=default.live_at_start,
        newest=default.found.newest_version,
        wanted_requests=wanted_requests,
        count_requests=count,
    )


def _whose(rule: LineageRule) -> str:
    """Return in words which requests a lineage serves."""
    if rule.share:
        return f"{rule.share:.1%} of the requests"
    wanted = (("tenant", rule.tenants), ("route", rule.routes))
    words = [f"{label} {', '.join(values)}" for label, values in wanted if values]
    return " and ".join(words) or "requests that name it"


def resolved_facts(
    parts: build.Parts, directory: RunDirectory, lineage: build.Lineage
) -> dict[str, str]:
    """Return what the configuration resolved to, in the order of the banner."""
    config, target = parts.config, parts.target
    plugins = build.plugin_labels(parts.plugins)
    return {
        "target": f"{target.name}: {target.architecture}, {target.num_layers} layers, "
        f"hidden size {target.hidden_size}, vocabulary {target.vocab_size}",
        "speculator": f"{config.speculator.name} ({_class_of(parts.speculator)}), "
        f"{parts.agreement.topology} of {config.num_speculative_tokens} tokens at most",
        "backend": f"{config.backend.name} ({_class_of(parts.backend)})",
        "trace sink": f"{config.trace_sink.name} ({_class_of(parts.sink)})",
        "swap policy": f"{config.swap_policy.name} ({_class_of(parts.policy)})",
        "plugins": ", ".join(f"{name} ({label})" for name, label in plugins.items()),
        "run directory": str(directory.path),
        "tracking": build.tracking_uri(config) or "off",
        "drafter": _drafter(parts, lineage.live),
    }


def _drafter(parts: build.Parts, live: DraftVersion | None) -> str:
    if not parts.speculator.trainable:
        return "needs no training, drafts from the start"
    return f"version {live.version}" if live else "none yet, learned from the traffic"


def _class_of(component: Component) -> str:
    return f"{type(component).__module__}:{type(component).__name__}"
