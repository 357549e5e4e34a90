"""`aurora run` and `aurora check`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins

ConfigPath = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="YAML file; the quickstart without one.")
]
PluginNames = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        "-p",
        metavar="NAME",
        help="Load exactly the plugins named (repeat it); `no:NAME` leaves one out.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Override one setting; the value is YAML. Repeat it for more.",
    ),
]


def run(
    config: ConfigPath = None,
    plugin: PluginNames = None,
    override: Overrides = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="End after so many finished requests.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="End after so many seconds.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write report.json and report.html here as well."),
    ] = None,
) -> None:
    """Serve, trace, learn and swap, until the configured end or Ctrl-C."""
    overrides = list(override or ())
    if requests is not None or duration is not None:
        # Flags replace whatever end the configuration sets, not only the one of their own kind.
        overrides += [
            f"requests={'null' if requests is None else requests}",
            f"duration_s={'null' if duration is None else duration}",
        ]
    settings, plugins = load(config, plugin or (), overrides)

    from aurora_core.controller.run import run as run_controller

    raise typer.Exit(
        run_controller(
            settings,
            plugins,
            requests=settings.requests,
            duration_s=settings.duration_s,
            report_dir=report,
        )
    )


def check(
    config: ConfigPath = None, plugin: PluginNames = None, override: Overrides = None
) -> None:
    """Validate a configuration and print it resolved; start and download nothing."""
    settings, plugins = load(config, plugin or (), override or ())

    from aurora_core.check import check_run

    print(check_run(settings, plugins))


def load(
    path: Path | None, plugin_names: Sequence[str], overrides: Sequence[str]
) -> tuple[RunConfig, Plugins]:
    """Return the configuration with the `-p` flags worked in, and its plugins loaded."""
    # Imported here, as everywhere in this package, so that `aurora plugins` and help stay fast.
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins

    settings = RunConfig.load(path, overrides)
    if plugin_names:
        names = select_plugins(settings.plugins, plugin_names)
        settings = settings.model_copy(update={"plugins": names})
    plugins = Plugins()
    plugins.load(settings.plugins)
    for broken in plugins.broken.values():
        print(f"aurora: left out: {broken.reason}", file=sys.stderr)
    return settings, plugins


def select_plugins(configured: Sequence[str] | None, flags: Sequence[str]) -> tuple[str, ...]:
    """Return the plugins to load: names given as flags replace the configured ones, `no:` adds."""
    named = [flag for flag in flags if not flag.startswith("no:")]
    left_out = [flag for flag in flags if flag.startswith("no:")]
    if not named and configured is not None and not configured:
        return ()  # nothing to leave anything out of: `no:` entries alone would load all others
    return (*(named or configured or ()), *left_out)
