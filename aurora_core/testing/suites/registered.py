"""Speculators of installed plugins, for suites that may not import them."""

from __future__ import annotations

from collections.abc import Mapping

from aurora_core.components import build_component
from aurora_core.config import ComponentSection
from aurora_core.interfaces import Speculator
from aurora_core.plugins import Plugins
from aurora_core.records import TargetSpec


def registered_speculator(
    name: str, options: Mapping[str, object], target: TargetSpec
) -> Speculator:
    """Build the speculator that a configuration with this name and these options selects.

    Raises:
        PluginError: no installed plugin registers it.
        ConfigError: it does not take the options.
    """
    plugins = Plugins()
    plugins.load()
    section = ComponentSection.model_validate({"name": name, **options})
    speculator = build_component(plugins, "speculators", section, target=target)
    assert isinstance(speculator, Speculator)
    return speculator
