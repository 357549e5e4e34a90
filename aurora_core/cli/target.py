"""`aurora target`: getting the model to serve."""

from __future__ import annotations

from typing import Annotated

import typer

application = typer.Typer(help="Get the model to serve.", no_args_is_help=True)


@application.callback()
def _target() -> None:
    """Keep `pull` a command of its own: Typer merges a single command into its parent."""


@application.command()
def pull(
    name: Annotated[
        str, typer.Argument(help="A hub id, or `quickstart` for SmolLM2-135M-Instruct.")
    ] = "quickstart",
) -> None:
    """Download a target, or find it in the cache, and print its directory."""
    from aurora_core.target.progress import progress_bar
    from aurora_core.target.pull import pull_target
    from aurora_core.target.spec import read_target_spec

    with progress_bar() as progress:
        directory = pull_target(name, progress=progress)
    print(read_target_spec(directory, name=name).path)
