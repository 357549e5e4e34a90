"""`aurora explain`, `aurora promote` and `aurora rollback`: what was judged, and overruling it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from aurora_core.cli.versions import DEFAULT_RUN_DIRECTORY, RunDirectory

if TYPE_CHECKING:
    from aurora_core.plugins import Plugins


def explain(
    version: Annotated[int, typer.Argument(min=1, metavar="VERSION", help="Its number.")],
    run_dir: RunDirectory = DEFAULT_RUN_DIRECTORY,
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Ask another swap policy, with its default options."),
    ] = None,
) -> None:
    """Print every decision on a version with its numbers, and decide it again from the log."""
    from aurora_core import explain as explaining

    config = explaining.read_config(run_dir)
    judge = explaining.build_policy(config, load_plugins(config.plugins), name=policy)
    print(explaining.explain(run_dir, version, judge))


def promote(
    version: Annotated[
        int | None, typer.Argument(min=1, metavar="VERSION", help="Its number.")
    ] = None,
    run_dir: RunDirectory = DEFAULT_RUN_DIRECTORY,
    auto: Annotated[bool, typer.Option("--auto", help="Let the swap policy decide again.")] = False,
) -> None:
    """Make a version live on a running server; it stays until `aurora promote --auto`."""
    from aurora_core.controller.control_socket import LetGo, Promote, give_command
    from aurora_core.errors import ConfigError

    if auto == (version is not None):
        raise ConfigError("give either a version to promote, or --auto")
    command = LetGo() if version is None else Promote(version=version)
    print(give_command(run_dir, command))


def rollback(
    version: Annotated[
        int | None,
        typer.Argument(min=1, metavar="VERSION", help="The previous one without it."),
    ] = None,
    run_dir: RunDirectory = DEFAULT_RUN_DIRECTORY,
    off: Annotated[bool, typer.Option("--off", help="Serve without speculation instead.")] = False,
) -> None:
    """Go back to an earlier version on a running server; it stays until `aurora promote --auto`."""
    from aurora_core.controller.control_socket import RollBack, SwitchOff, give_command
    from aurora_core.errors import ConfigError

    if off and version is not None:
        raise ConfigError("give either a version to roll back to, or --off")
    command = SwitchOff() if off else RollBack(version=version)
    print(give_command(run_dir, command))


def load_plugins(names: tuple[str, ...] | None) -> Plugins:
    """Return the plugins that a run was configured with."""
    from aurora_core.plugins import Plugins

    plugins = Plugins()
    plugins.load(names)
    return plugins
