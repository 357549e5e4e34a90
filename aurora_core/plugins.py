"""Loading plugins, resolving the components they name, and telling them what happens.

A plugin is a module named by an entry point in the group `aurora_core.plugins`. Loading imports
that module and asks which components it provides; the components themselves are imported when a
configuration selects them, so that loading every plugin stays a matter of milliseconds.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import inspect
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pluggy

from aurora_core import __version__, hookspecs
from aurora_core.errors import PluginError
from aurora_core.registrations import INTERFACES, KINDS, SECTIONS, Kind, check_registrations

if TYPE_CHECKING:
    from aurora_core.interfaces import Component
    from aurora_core.records import Registration

ENTRY_POINT_GROUP = "aurora_core.plugins"
CORE = "core"
"""Name of the plugin that every install has; it cannot be disabled."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPlugin:
    """A plugin that works."""

    name: str
    distribution: str
    """Empty for objects registered at run time."""
    version: str
    components: dict[Kind, tuple[Registration, ...]] = field(default_factory=dict)
    """Kind -> what the plugin provides."""
    hooks: tuple[str, ...] = ()
    """Every hook it implements."""

    @property
    def label(self) -> str:
        """How messages name it: with the distribution to uninstall or upgrade."""
        source = f" ({self.distribution} {self.version})" if self.distribution else ""
        return f"{self.name!r}{source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenPlugin:
    """An installed plugin that was left out, and why."""

    name: str
    distribution: str
    version: str
    reason: str


class Plugins:
    """The plugins of one process. No module-level instance: every test makes its own."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager("aurora")
        self.manager.add_hookspecs(hookspecs)
        self.loaded: dict[str, LoadedPlugin] = {}
        self.broken: dict[str, BrokenPlugin] = {}
        self.failures: Counter[str] = Counter()
        """Plugin name -> notifications in which it raised."""
        self._not_wanted: tuple[str, ...] = ()
        from aurora_core import builtin

        self.register(builtin, CORE, distribution="aurora-core", version=__version__)

    def load(self, names: Sequence[str] | None = None) -> None:
        """Load installed plugins.

        Args:
            names: None loads all that work and keeps the others in `broken`. Names load exactly
                these, and a broken one is an error; no names load nothing but core. `no:NAME`
                leaves one out; a list of such entries alone loads all the others.

        Raises:
            PluginError: an unknown name, or a broken plugin that was named.
        """
        installed: dict[str, list[importlib.metadata.EntryPoint]] = {}
        for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
            installed.setdefault(entry.name, []).append(entry)
        named = [name for name in names or () if not name.startswith("no:")]
        left_out = {name.removeprefix("no:") for name in names or () if name.startswith("no:")}
        if CORE in left_out:
            raise PluginError(f"plugin {CORE!r} cannot be left out; remove 'no:{CORE}'")
        if unknown := sorted((set(named) | left_out) - installed.keys() - {CORE}):
            raise PluginError(
                f"no installed plugin is named {', '.join(map(repr, unknown))}; "
                f"installed: {', '.join(sorted(installed)) or 'none'}"
            )
        takes_all = names is None or (bool(names) and not named)
        wanted = [
            name
            for name in dict.fromkeys(sorted(installed) if takes_all else named)
            if name not in left_out and not (named and name == CORE)
        ]
        self._not_wanted = tuple(sorted(installed.keys() - set(wanted)))
        for name in wanted:
            try:
                self._load_one(name, installed[name])
            except PluginError as error:
                if named:
                    raise
                distribution, version = _origin(installed[name][0])
                self.broken[name] = BrokenPlugin(
                    name=name, distribution=distribution, version=version, reason=str(error)
                )
                log.info("left out: %s", error)

    def _load_one(self, name: str, entries: Sequence[importlib.metadata.EntryPoint]) -> None:
        sources = [" ".join(_origin(entry)).strip() or entry.value for entry in entries]
        if len(entries) > 1:
            raise PluginError(
                f"plugin name {name!r} is taken by {' and by '.join(sources)}; uninstall one"
            )
        try:
            plugin = entries[0].load()
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            raise PluginError(f"plugin {name!r} ({sources[0]}) cannot load: {reason}") from error
        distribution, version = _origin(entries[0])
        self.register(plugin, name, distribution=distribution, version=version)

    def register(
        self, plugin: object, name: str, *, distribution: str = "", version: str = ""
    ) -> None:
        """Add a plugin object: an installed module, or an observer of this process.

        Raises:
            PluginError: it implements an unknown hook, misuses one, or registers nonsense; it is
                not added then.
        """
        label = f"{name!r} ({distribution} {version})" if distribution else repr(name)
        try:
            if name in self.loaded:
                raise PluginError(f"the name is taken by {self.loaded[name].label}")
            if other := self.manager.get_name(plugin):
                raise PluginError(f"it is the same object as plugin {other!r}")
            self.manager.register(plugin, name)
            try:
                hooks = self._checked_hooks(plugin)
                components = _components(hooks)
            except Exception:
                self.manager.unregister(name=name)
                raise
        except Exception as error:
            known = isinstance(error, pluggy.PluginValidationError | PluginError)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            raise PluginError(f"plugin {label} is broken: {reason}") from error
        self.loaded[name] = LoadedPlugin(
            name=name,
            distribution=distribution,
            version=version,
            components=components,
            hooks=tuple(sorted(hooks)),
        )

    def _checked_hooks(self, plugin: object) -> dict[str, list[pluggy.HookImpl]]:
        """Return hook -> implementations; reject the mistakes that pluggy lets pass."""
        hooks: dict[str, list[pluggy.HookImpl]] = {}
        for caller in self.manager.get_hookcallers(plugin) or ():
            if not caller.has_spec():
                close = difflib.get_close_matches(caller.name, dir(hookspecs), n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise PluginError(f"unknown hook {caller.name!r}{hint}")
            hooks[caller.name] = [i for i in caller.get_hookimpls() if i.plugin is plugin]
            for implementation in hooks[caller.name]:
                if implementation.kwargnames:
                    raise PluginError(
                        f"{caller.name} gives {implementation.kwargnames[0]!r} a default, with "
                        "which versions of pluggy deal differently; remove the default"
                    )
                if inspect.iscoroutinefunction(implementation.function):
                    raise PluginError(f"{caller.name} is async, but hooks are synchronous")
        return hooks

    def registrations(self, kind: Kind) -> dict[str, list[tuple[LoadedPlugin, Registration]]]:
        """Return component name -> who provides it; more than one provider is a conflict."""
        found: dict[str, list[tuple[LoadedPlugin, Registration]]] = {}
        for plugin in self.loaded.values():
            for registration in plugin.components.get(kind, ()):
                found.setdefault(registration.name, []).append((plugin, registration))
        return found

    def resolve(self, kind: Kind, name: str) -> type[Component]:
        """Import and return the class registered as `name`.

        Args:
            kind: `speculators`, `backends`, `trace_sinks` or `swap_policies`.
            name: as in the configuration.

        Raises:
            PluginError: nobody or more than one plugin provides it, or it is not a usable class.
        """
        providers = self.registrations(kind)
        if name not in providers:
            missing = "".join(f"; {plugin.reason}" for plugin in self.broken.values())
            if self._not_wanted:
                missing += (
                    f"; installed, but not among those to load (`plugins`, -p): "
                    f"{', '.join(self._not_wanted)}"
                )
            raise PluginError(
                f"no plugin provides {name!r} under {kind}; "
                f"available: {', '.join(sorted(providers)) or 'none'}{missing}"
            )
        if len(providers[name]) > 1:
            labels = " and by ".join(plugin.label for plugin, _ in providers[name])
            raise PluginError(
                f"{name!r} is registered under {kind} by {labels}; uninstall one, or leave one "
                "out with `-p no:NAME`"
            )
        [(plugin, registration)] = providers[name]
        return _import_component(kind, registration, plugin)

    def notify(self, hook: str, **arguments: Any) -> None:
        """Call a notification hook. One plugin's error is logged, counted and goes no further.

        A hook about a lineage is about the default one unless told otherwise.
        """
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        assert caller.spec is not None, hook
        if "lineage" in caller.spec.argnames:
            arguments.setdefault("lineage", "")
        assert set(caller.spec.argnames) == arguments.keys(), hook
        for implementation in reversed(caller.get_hookimpls()):
            try:
                implementation.function(*(arguments[name] for name in implementation.argnames))
            except Exception:
                self.failures[implementation.plugin_name] += 1
                log.exception("plugin %r failed in %s", implementation.plugin_name, hook)


def _origin(entry: importlib.metadata.EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist else ("", "")


def _components(
    hooks: dict[str, list[pluggy.HookImpl]],
) -> dict[Kind, tuple[Registration, ...]]:
    components: dict[Kind, tuple[Registration, ...]] = {}
    for kind in KINDS:
        for implementation in hooks.get(f"aurora_register_{kind}", ()):
            yielded: Iterable[object] = implementation.function() or ()  # type: ignore[assignment]
            components[kind] = check_registrations(kind, yielded)
    return components


def _import_component(
    kind: Kind, registration: Registration, plugin: LoadedPlugin
) -> type[Component]:
    from aurora_core import interfaces

    subject = f"{SECTIONS[kind]} {registration.name!r} of plugin {plugin.label}"
    module, _, attribute = registration.target.partition(":")
    try:
        component = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise PluginError(f"{subject} cannot be imported: {reason}") from error
    interface: type[Component] = getattr(interfaces, INTERFACES[kind])
    if not (isinstance(component, type) and issubclass(component, interface)):
        raise PluginError(
            f"{subject} is no {interface.__name__}: {registration.target!r} is not a subclass of "
            f"aurora_core.interfaces.{interface.__name__}"
        )
    if missing := sorted(getattr(component, "__abstractmethods__", ())):
        raise PluginError(f"{subject} does not implement {', '.join(missing)}")
    return component
