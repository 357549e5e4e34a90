"""The suites of an installed plugin: one class per component, ready to run.

Components are built with their default options for the tiny target. A plugin whose components need
more names a module in the entry point group `aurora_core.conformance`, under the plugin's name; the
suite classes in it take the place of the default ones for the kinds that they are of.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from aurora_core.components import build_component, check_component
from aurora_core.config import ComponentSection
from aurora_core.errors import PluginError
from aurora_core.interfaces import Backend, Speculator, SwapPolicy, TraceSink
from aurora_core.plugins import LoadedPlugin, Plugins
from aurora_core.records import TargetSpec
from aurora_core.registrations import KINDS, SECTIONS, Kind
from aurora_core.testing.suites import (
    BackendSuite,
    SpeculatorSuite,
    SwapPolicySuite,
    TraceSinkSuite,
)

CONFORMANCE_GROUP = "aurora_core.conformance"

SUITES: dict[Kind, type] = {
    "speculators": SpeculatorSuite,
    "backends": BackendSuite,
    "trace_sinks": TraceSinkSuite,
    "swap_policies": SwapPolicySuite,
}


def suites_of(
    plugins: Plugins, plugin: LoadedPlugin, kinds: Collection[Kind] = KINDS
) -> dict[str, type]:
    """Return class name -> suite class, for every component of some kinds that a plugin provides.

    Raises:
        PluginError: it provides none of them, or its own suites cannot be used.
        ConfigError: a component has options without a default, and the plugin no suites of its own.
    """
    own = _own_suites(plugin)
    found: dict[str, type] = {}
    for kind in KINDS:
        registrations = plugin.components.get(kind, ())
        if kind not in kinds or not registrations:
            continue
        replaced = {n: cls for n, cls in own.items() if issubclass(cls, SUITES[kind])}
        if replaced:
            found |= replaced
            continue
        for registration in registrations:
            title = "".join(part.title() for part in registration.name.split("_"))
            title = "".join(c for c in title if c.isalnum())
            section = SECTIONS[kind].title().replace("_", "")
            found[f"Test{title}{section}"] = _default_suite(plugins, kind, registration.name)
    if not found:
        wanted = " or ".join(SECTIONS[kind] for kind in kinds)
        provided = ", ".join(SECTIONS[kind] for kind in KINDS if plugin.components.get(kind))
        raise PluginError(
            f"plugin {plugin.label} provides no {wanted}; it provides {provided or 'no component'}"
        )
    return found


def _own_suites(plugin: LoadedPlugin) -> dict[str, type]:
    """Return the suite classes of the module that the plugin names, none without one."""
    entries = importlib.metadata.entry_points(group=CONFORMANCE_GROUP, name=plugin.name)
    found: dict[str, type] = {}
    for entry in entries:
        try:
            module = entry.load()
        except (Exception, SystemExit) as error:  # whatever a plugin's module does when imported
            raise PluginError(
                f"the conformance suites of plugin {plugin.label} cannot be imported from "
                f"{entry.value!r}: {type(error).__name__}: {error}"
            ) from error
        classes = {n: value for n, value in vars(module).items() if n.startswith("Test")}
        mine = {n: c for n, c in classes.items() if _is_suite(c)}
        if not mine:
            raise PluginError(
                f"{entry.value!r}, which plugin {plugin.label} names in {CONFORMANCE_GROUP!r}, "
                "has no class named Test... that subclasses a suite of aurora_core.testing.suites"
            )
        found |= mine
    return found


def _is_suite(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, tuple(SUITES.values()))


def _default_suite(plugins: Plugins, kind: Kind, name: str) -> type:
    """Return a suite of one component as it is configured by default."""
    section = ComponentSection.model_validate({"name": name})
    if kind == "trace_sinks":
        return _sink_suite(plugins, section)
    check_component(plugins, kind, section)

    if kind == "speculators":

        class DefaultSpeculatorSuite(SpeculatorSuite):
            @pytest.fixture
            def speculator(self, target: TargetSpec) -> Speculator:
                return build_component(plugins, "speculators", section, target=target)

        return DefaultSpeculatorSuite
    if kind == "backends":

        class DefaultBackendSuite(BackendSuite):
            @pytest.fixture
            def backend(self) -> Backend:
                return build_component(plugins, "backends", section)

        return DefaultBackendSuite

    class DefaultSwapPolicySuite(SwapPolicySuite):
        @pytest.fixture
        def policy(self) -> SwapPolicy:
            return build_component(plugins, "swap_policies", section)

    return DefaultSwapPolicySuite


def _sink_suite(plugins: Plugins, section: ComponentSection) -> type:
    """Return a suite of one sink; what limits it is its option `max_bytes`, if it has one."""
    component = plugins.resolve("trace_sinks", section.name)
    fields = component.Config.model_fields

    def build(path: Path, **more: Any) -> TraceSink:
        return build_component(
            plugins, "trace_sinks", section, defaults={"path": path / "sink", **more}
        )

    class DefaultTraceSinkSuite(TraceSinkSuite):
        @pytest.fixture
        def sink(self, tmp_path: Path) -> TraceSink:
            return build(tmp_path)

        @pytest.fixture
        def small_sink(self, tmp_path: Path) -> TraceSink:
            if "max_bytes" not in fields:
                pytest.skip("the sink has no option `max_bytes` to make it small with")
            return build(tmp_path, max_bytes=512 * 1024)

    return DefaultTraceSinkSuite
