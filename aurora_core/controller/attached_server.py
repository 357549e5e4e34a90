"""For plugins whose runs attach to a server: the plan behind its command, and how it is printed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from aurora_core.errors import AuroraError, ConfigError

if TYPE_CHECKING:
    from aurora_core.interfaces import Backend, ServePlan

Kind = TypeVar("Kind", bound="Backend")


def print_command(make: Callable[[], str]) -> None:
    """Print a command, or the sentence that says why there is none and end with status 2."""
    try:
        print(make())
    except AuroraError as error:
        sys.stderr.write(f"aurora: {error}\n")
        raise typer.Exit(2) from error


def plan_for(config: Path, kind: type[Kind], name: str) -> tuple[Kind, ServePlan]:
    """Return the backend of a configuration, and the plan that a run of it would serve by now.

    Args:
        config: file of the run.
        kind: of the backend.
        name: of the backend, in the configuration.

    Raises:
        ConfigError: the configuration cannot be used, or has another backend.
        AuroraError: its parts do not fit, or the run's state cannot be read.
    """
    from aurora_core.config import RunConfig
    from aurora_core.controller import build
    from aurora_core.controller.run_directory import RunDirectory
    from aurora_core.plugins import Plugins

    settings = RunConfig.load(config, ())
    plugins = Plugins()
    plugins.load(settings.plugins)
    parts = build.build_parts(settings, plugins)
    if not isinstance(parts.backend, kind):
        raise ConfigError(f"`backend.name` of {str(config)!r} is not `{name}`; there is no command")
    directory = RunDirectory(settings.run_dir)
    live = build.read_lineage(directory).live
    return parts.backend, build.plan_serving(parts, directory, initial=live)
