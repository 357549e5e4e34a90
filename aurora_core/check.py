"""What `aurora check` finds out: everything that can be known before something is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import yaml

from aurora_core.components import build_component, check_component, run_defaults
from aurora_core.controller.build_lineages import build_lineages, check_holds_lineages
from aurora_core.controller.run_directory import RunDirectory, without_secrets
from aurora_core.registrations import KINDS, SECTIONS

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.controller.build import Parts
    from aurora_core.interfaces import Speculator
    from aurora_core.plugins import Plugins


def check_run(config: RunConfig, plugins: Plugins) -> str:
    """Check plugins, options, prompts, run directory, target and negotiation; write nothing.

    Passwords and keys in the result are stars, as in `resolved.yaml`.

    A target that is not on this machine yet is left alone, and so is then what needs to know it:
    the negotiation, and whether the drafters in the run directory were made for it.

    A GPU that is named, an engine's environment and settings of Lightning other than the defaults
    are looked for in processes of their own, which takes seconds.

    Returns:
        The resolved configuration as text.

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
    backend = build_component(plugins, "backends", config.backend)
    if config.lineages:
        check_holds_lineages(config, backend)
    _check_prompts(config)
    for name in ("", *config.lineages):
        one = config.of_lineage(name)
        RunDirectory(one.run_dir).check_usable()
        defaults = run_defaults(one, "trace_sinks")
        build_component(plugins, "trace_sinks", one.trace_sink, defaults=defaults).check()
    backend.check()
    _check_learners(config, plugins)
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


def _check_learners(config: RunConfig, plugins: Plugins) -> None:
    """See that every learner that the run would have can train with what it is told."""
    from aurora_core.learner.trainer_check import check_trainer

    for name in ("", *config.lineages):
        one = config.of_lineage(name)
        speculator = cast("type[Speculator]", plugins.resolve("speculators", one.speculator.name))
        if speculator.trainable:
            check_trainer(one.learner)


def _check_prompts(config: RunConfig) -> None:
    from aurora_core.controller.final_measurement import held_out_prompts
    from aurora_core.traffic.prompts import open_prompts

    if (traffic := config.traffic) is not None:
        open_prompts(
            traffic.prompts,
            domains=traffic.domains,
            order=traffic.order,
            split="train" if config.final_bench is not None else None,
        )
    held_out_prompts(config)


def _check_target(config: RunConfig, plugins: Plugins) -> list[str]:
    from aurora_core.controller import build
    from aurora_core.errors import TargetError
    from aurora_core.target.pull import could_be_fetched, pull_target
    from aurora_core.target.spec import read_target_spec

    try:
        directory = pull_target(config.target, offline=True)
    except TargetError:
        if not could_be_fetched(config.target):
            raise
        return [
            f"# target {config.target}: not on this machine yet (`aurora target pull "
            f"{config.target}`), so what the speculator needs of the backend was not checked"
        ]
    target = read_target_spec(directory, name=config.target)
    parts = build.assemble(config, plugins, target)
    return [
        f"# target {target.name}: {target.architecture}, {target.num_layers} layers, "
        f"hidden size {target.hidden_size}, vocabulary {target.vocab_size}, in {target.path}",
        "",
        *_negotiate_all(parts),
    ]


def _negotiate_all(default: Parts) -> list[str]:
    """See that the backend has what every lineage needs, and what their directories hold."""
    from aurora_core.controller import build

    lines: list[str] = []
    for parts in (default, *build_lineages(default)):
        build.check_directory(parts, RunDirectory(parts.config.run_dir))
        lines.append(f"# {parts.config.speculator.name} on {parts.config.backend.name}")
        lines += [f"#{line}" for line in parts.agreement.table().splitlines()]
    return lines
