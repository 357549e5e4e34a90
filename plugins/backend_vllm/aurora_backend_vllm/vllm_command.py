"""`aurora vllm-command`: how to start a server that a run can attach to."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer


def vllm_command(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration of the run.")],
    port: Annotated[int, typer.Option(help="Port that the server listens on.")] = 8000,
) -> None:
    """Print the command that starts a vLLM server for `aurora run CONFIG` to attach to.

    The drafter it starts with is made first, in the run directory, unless the run has one.
    """
    from aurora_core.errors import AuroraError

    try:
        print(_command(config, port))
    except AuroraError as error:
        sys.stderr.write(f"aurora: {error}\n")
        raise typer.Exit(2) from error


def _command(config: Path, port: int) -> str:
    from aurora_backend_vllm.backend import VllmBackend
    from aurora_backend_vllm.engine.settings import TOKEN_VARIABLE
    from aurora_backend_vllm.server_command import server_command
    from aurora_core.config import RunConfig
    from aurora_core.controller import build
    from aurora_core.controller.run_directory import RunDirectory
    from aurora_core.engine_process.placeholder import make_placeholder
    from aurora_core.errors import ConfigError
    from aurora_core.plugins import Plugins

    settings = RunConfig.load(config, ())
    plugins = Plugins()
    plugins.load(settings.plugins)
    parts = build.build_parts(settings, plugins)
    if not isinstance(parts.backend, VllmBackend):
        raise ConfigError(f"`backend.name` of {str(config)!r} is not `vllm`; there is no command")
    directory = RunDirectory(settings.run_dir)
    live = build.read_lineage(directory).live
    plan = build.plan_serving(parts, directory, initial=live)
    if live is not None:
        drafter = Path(live.path)
    else:
        folder = directory.path.absolute() / "engine" / "placeholder"
        drafter = anyio.run(make_placeholder, plan, folder)
    command = server_command(plan, parts.backend.options, drafter=drafter, port=port)
    return f"VLLM_USE_V2_MODEL_RUNNER=0 {TOKEN_VARIABLE}=CHOOSE-ONE {shlex.join(command)}"
