"""Building the component that a section of the configuration selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, overload

from pydantic import ValidationError

from aurora_core import config_source
from aurora_core.errors import ConfigError
from aurora_core.registrations import SECTIONS, Kind

if TYPE_CHECKING:
    from aurora_core.config import ComponentSection, RunConfig
    from aurora_core.interfaces import (
        Backend,
        Component,
        Options,
        Speculator,
        SwapPolicy,
        TraceSink,
    )
    from aurora_core.plugins import Plugins
    from aurora_core.records import TargetSpec


@overload
def build_component(
    plugins: Plugins,
    kind: Literal["speculators"],
    section: ComponentSection,
    *,
    target: TargetSpec,
    defaults: Mapping[str, object] | None = None,
) -> Speculator: ...
@overload
def build_component(
    plugins: Plugins,
    kind: Literal["backends"],
    section: ComponentSection,
    *,
    defaults: Mapping[str, object] | None = None,
) -> Backend: ...
@overload
def build_component(
    plugins: Plugins,
    kind: Literal["trace_sinks"],
    section: ComponentSection,
    *,
    defaults: Mapping[str, object] | None = None,
) -> TraceSink: ...
@overload
def build_component(
    plugins: Plugins,
    kind: Literal["swap_policies"],
    section: ComponentSection,
    *,
    defaults: Mapping[str, object] | None = None,
) -> SwapPolicy: ...
def build_component(
    plugins: Plugins,
    kind: Kind,
    section: ComponentSection,
    *,
    target: TargetSpec | None = None,
    defaults: Mapping[str, object] | None = None,
) -> Component:
    """Import, configure and construct the component that a section selects.

    Args:
        plugins: loaded plugins.
        kind: `speculators`, `backends`, `trace_sinks` or `swap_policies`.
        section: selects the component and holds its options.
        target: second constructor argument of speculators; other kinds take none.
        defaults: options that the run supplies unless the user did, for example a folder below
            the run directory; those that the component does not have are left out.

    Raises:
        PluginError: nothing provides that name, or its class is not usable.
        ConfigError: the component refuses its options.
    """
    component, options = check_component(plugins, kind, section, defaults=defaults)
    return component(options) if target is None else component(options, target)


def check_component(
    plugins: Plugins,
    kind: Kind,
    section: ComponentSection,
    *,
    defaults: Mapping[str, object] | None = None,
) -> tuple[Callable[..., Component], Options]:
    """Return the class that a section selects and its validated options, constructing nothing."""
    component = plugins.resolve(kind, section.name)
    root = SECTIONS[kind]
    supplied = {
        key: value
        for key, value in (defaults or {}).items()
        if key in component.Config.model_fields
    }
    try:
        options = component.Config.model_validate(supplied | section.options)
    except ValidationError as error:
        source = f"{root} {section.name!r}"
        raise ConfigError(
            config_source.explain(error, component.Config, source, root=root)
        ) from error
    return component, options


def run_defaults(config: RunConfig, kind: Kind) -> dict[str, object]:
    """Return the options that a run supplies to its components, unless the user sets them."""
    if kind == "trace_sinks":
        return {"path": config.run_dir.absolute() / "spool", "seed": config.seed}
    return {}
