"""`aurora doctor`: what this machine and environment can run, and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask whether the network answers.")
    ] = False,
    run_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder whose disk is looked at.")
    ] = Path("runs"),
) -> None:
    """Look at the machine and the environment; exit 2 if the quickstart cannot run."""
    from aurora_core.doctor import can_run, examine, render

    findings = examine(run_dir, network=not offline)
    if as_json:
        print(json.dumps([finding.as_data() for finding in findings], indent=2))
    else:
        print(render(findings))
    raise typer.Exit(0 if can_run(findings) else 2)
