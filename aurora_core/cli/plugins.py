"""`aurora plugins`: what is installed, and what is wrong with what does not work."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from aurora_core.cli import plugin_check
from aurora_core.plugins import Plugins
from aurora_core.registrations import KINDS, SECTIONS

application = typer.Typer(invoke_without_command=True)
application.command("check")(plugin_check.check)


@application.callback()
def plugins(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List plugins: name, distribution, version, components; broken ones with the reason."""
    if context.invoked_subcommand is not None:
        return
    found = Plugins()
    found.load()
    print(json.dumps(as_data(found), indent=2) if as_json else as_text(found))


def as_data(found: Plugins) -> dict[str, object]:
    """Return the listing as plain data: lists `loaded` and `broken`, and `conflicts`."""
    return {
        "loaded": [dataclasses.asdict(plugin) for plugin in found.loaded.values()],
        "broken": [dataclasses.asdict(plugin) for plugin in found.broken.values()],
        "conflicts": _conflicts(found),
    }


def as_text(found: Plugins) -> str:
    """Return the listing as lines for people: a plugin, and indented what it provides."""
    lines = []
    for plugin in found.loaded.values():
        lines.append(f"{plugin.name}  ({plugin.distribution} {plugin.version})")
        rows = [
            (SECTIONS[kind], registration.name, registration.summary)
            for kind, registrations in plugin.components.items()
            for registration in registrations
        ]
        for section, name, summary in rows:
            lines.append(f"  {section:<12} {name:<12} {summary}".rstrip())
        lines += [
            f"  hook         {hook}"
            for hook in plugin.hooks
            if hook.removeprefix("aurora_register_") not in KINDS
        ]
    for broken in found.broken.values():
        lines.append(f"{broken.name}  ({broken.distribution} {broken.version})  BROKEN")
        lines.append(f"  {broken.reason}")
    lines += [f"conflict: {conflict}" for conflict in _conflicts(found)]
    return "\n".join(lines)


def add_commands(application: typer.Typer) -> None:
    """Let every plugin that works add its commands."""
    found = Plugins()
    found.load()
    found.notify("aurora_register_commands", app=application)


def _conflicts(found: Plugins) -> list[str]:
    return [
        f"{SECTIONS[kind]} {name!r} is registered by "
        + " and by ".join(plugin.label for plugin, _ in providers)
        for kind in KINDS
        for name, providers in found.registrations(kind).items()
        if len(providers) > 1
    ]
