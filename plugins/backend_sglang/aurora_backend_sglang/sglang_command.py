"""`aurora sglang-command`: how to start a server that a run can attach to."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer


def sglang_command(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration of the run.")],
    port: Annotated[int, typer.Option(help="Port that the server listens on.")] = 30000,
) -> None:
    """Print the command that starts an SGLang server for `aurora run CONFIG` to attach to.

    The files that it names are written first, into the run directory.
    """
    from aurora_core.errors import AuroraError

    try:
        print(_command(config, port))
    except AuroraError as error:
        sys.stderr.write(f"aurora: {error}\n")
        raise typer.Exit(2) from error


def _command(config: Path, port: int) -> str:
    from aurora_backend_sglang.backend import SglangBackend
    from aurora_backend_sglang.other_drafters import check_nothing_live
    from aurora_backend_sglang.server_command import server_command, server_environment
    from aurora_backend_sglang.start_drafter import check_layers
    from aurora_backend_sglang.start_files import write_start_files
    from aurora_core.config import RunConfig
    from aurora_core.controller import build
    from aurora_core.controller.run_directory import RunDirectory
    from aurora_core.errors import ConfigError
    from aurora_core.plugins import Plugins

    settings = RunConfig.load(config, ())
    plugins = Plugins()
    plugins.load(settings.plugins)
    parts = build.build_parts(settings, plugins)
    if not isinstance(parts.backend, SglangBackend):
        raise ConfigError(f"`backend.name` of {str(config)!r} is not `sglang`; there is no command")
    options = parts.backend.options
    directory = RunDirectory(settings.run_dir)
    plan = build.plan_serving(parts, directory, initial=build.read_lineage(directory).live)
    check_layers(plan)
    check_nothing_live(plan, options)
    files = anyio.run(write_start_files, plan, options)
    python = options.python.absolute()
    command = server_command(plan, options, drafter=files.drafter, port=port, python=python)
    variables = server_environment(options, settings_path=files.settings, token="CHOOSE-ONE")
    return shlex.join(["env", *(f"{name}={value}" for name, value in variables.items()), *command])
