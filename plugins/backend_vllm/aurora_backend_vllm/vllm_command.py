"""`aurora vllm-command`: how to start a server that a run can attach to."""

from __future__ import annotations

import shlex
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
    from aurora_core.controller.attached_server import print_command

    print_command(lambda: _command(config, port))


def _command(config: Path, port: int) -> str:
    from aurora_backend_vllm.backend import VllmBackend
    from aurora_backend_vllm.engine.settings import TOKEN_VARIABLE
    from aurora_backend_vllm.server_command import server_command
    from aurora_core.controller.attached_server import plan_for
    from aurora_core.engine_process.placeholder import make_placeholder

    backend, plan = plan_for(config, VllmBackend, "vllm")
    if plan.initial_version is not None:
        drafter = Path(plan.initial_version.path)
    else:
        folder = Path(plan.run_dir).absolute() / "engine" / "placeholder"
        drafter = anyio.run(make_placeholder, plan, folder)
    command = server_command(plan, backend.options, drafter=drafter, port=port)
    return f"VLLM_USE_V2_MODEL_RUNNER=0 {TOKEN_VARIABLE}=CHOOSE-ONE {shlex.join(command)}"
