"""`aurora sglang-command`: how to start a server that a run can attach to."""

from __future__ import annotations

import shlex
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
    from aurora_core.controller.attached_server import print_command

    print_command(lambda: _command(config, port))


def _command(config: Path, port: int) -> str:
    from aurora_backend_sglang.backend import SglangBackend
    from aurora_backend_sglang.other_drafters import check_nothing_live
    from aurora_backend_sglang.server_command import server_command, server_environment
    from aurora_backend_sglang.start_drafter import check_layers
    from aurora_backend_sglang.start_files import write_start_files
    from aurora_core.controller.attached_server import plan_for

    backend, plan = plan_for(config, SglangBackend, "sglang")
    options = backend.options
    check_layers(plan)
    check_nothing_live(plan, options)
    files = anyio.run(write_start_files, plan, options)
    python = options.python.absolute()
    command = server_command(plan, options, drafter=files.drafter, port=port, python=python)
    variables = server_environment(options, settings_path=files.settings, token="CHOOSE-ONE")
    return shlex.join(["env", *(f"{name}={value}" for name, value in variables.items()), *command])
