"""What `aurora check` finds out: everything that can be known before something is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from aurora_core.components import build_component, check_component, run_defaults
from aurora_core.controller.build_lineages import check_holds_lineages
from aurora_core.controller.run_directory import without_secrets
from aurora_core.lineages import union_of_needs
from aurora_core.negotiation import negotiate
from aurora_core.registrations import KINDS, SECTIONS

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins
    from aurora_core.records import Needs, TargetSpec


def check_run(config: RunConfig, plugins: Plugins) -> str:
    """Check plugins, options, target and negotiation; return the resolved configuration as text.

    Passwords and keys in it are stars, as in `resolved.yaml`.

    A target that is not on this machine yet is left alone, and so is then the negotiation, which
    needs to know it.

    Raises:
        AuroraError: the first thing that would keep the run from starting.
    """
    shown = without_secrets(config.model_dump(mode="json"))
    lines = [yaml.safe_dump(shown, sort_keys=False).rstrip(), "", "# components"]
    for kind in KINDS:
        section = getattr(config, SECTIONS[kind])
        check_component(plugins, kind, section, defaults=run_defaults(config, kind))
        [(plugin, registration)] = plugins.registrations(kind)[section.name]
        lines.append(
            f"# {SECTIONS[kind]} {section.name}: {registration.target}, plugin {plugin.label}"
        )
    for name in config.lineages:
        lines += _check_lineage(config.of_lineage(name), name, plugins)
    if config.lineages:
        check_holds_lineages(config, build_component(plugins, "backends", config.backend))
    lines += ["", *_check_target(config, plugins)]
    return "\n".join(lines)


def _check_lineage(config: RunConfig, name: str, plugins: Plugins) -> list[str]:
    """Check the components that a lineage has for itself."""
    lines = []
    for kind in KINDS:
        if kind != "backends":
            section = getattr(config, SECTIONS[kind])
            check_component(plugins, kind, section, defaults=run_defaults(config, kind))
            [(plugin, registration)] = plugins.registrations(kind)[section.name]
            lines.append(
                f"# lineage {name}: {SECTIONS[kind]} {section.name}: {registration.target}, "
                f"plugin {plugin.label}"
            )
    return lines


def _check_target(config: RunConfig, plugins: Plugins) -> list[str]:
    from aurora_core.errors import TargetError
    from aurora_core.target.pull import pull_target
    from aurora_core.target.spec import read_target_spec

    is_path = config.target.startswith((".", "/", "~")) or Path(config.target).exists()
    try:
        directory = pull_target(config.target, offline=True)
    except TargetError:
        if is_path:
            raise
        return [
            f"# target {config.target}: not on this machine yet (`aurora target pull "
            f"{config.target}`), so what the speculator needs of the backend was not checked"
        ]
    target = read_target_spec(directory, name=config.target)
    return [
        f"# target {target.name}: {target.architecture}, {target.num_layers} layers, "
        f"hidden size {target.hidden_size}, vocabulary {target.vocab_size}, in {target.path}",
        "",
        *_negotiate_all(config, plugins, target),
    ]


def _negotiate_all(config: RunConfig, plugins: Plugins, target: TargetSpec) -> list[str]:
    """See that the backend has what every lineage needs, alone and together."""
    backend = build_component(plugins, "backends", config.backend)
    lines: list[str] = []
    needs: list[tuple[str, Needs]] = []
    for name in ("", *config.lineages):
        section = config.of_lineage(name).speculator
        speculator = build_component(plugins, "speculators", section, target=target)
        needs.append((name, speculator.needs))
        agreement = negotiate(
            speculator, backend, speculator_name=section.name, backend_name=config.backend.name
        )
        lines.append(f"# {section.name} on {config.backend.name}")
        lines += [f"#{line}" for line in agreement.table().splitlines()]
    union_of_needs(needs)
    return lines
