"""`aurora versions` and `aurora ui`: looking at what a run has made."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from aurora_core.records import DraftVersion
    from aurora_core.versions import RunState

DEFAULT_RUN_DIRECTORY = Path("runs/quickstart")

RunDirectory = Annotated[
    Path, typer.Option("--run-dir", metavar="DIR", help="Directory of the run.")
]
"""The same for every command that looks at a run or acts on one."""


def versions(
    run_dir: RunDirectory = DEFAULT_RUN_DIRECTORY,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the drafter versions of a run: steps, acceptance length, age, which one is live."""
    from aurora_core.errors import ConfigError
    from aurora_core.lineages import DEFAULT_LINEAGE
    from aurora_core.versions import VersionStore, read_run_state
    from aurora_core.wire import to_dict

    if not run_dir.is_dir():
        raise ConfigError(
            f"there is no run directory {str(run_dir)!r}; give the directory of a run, as in "
            f"`aurora versions --run-dir {DEFAULT_RUN_DIRECTORY}`"
        )

    def read(folder: Path) -> tuple[RunState, tuple[DraftVersion, ...]]:
        return read_run_state(folder / "state.json"), VersionStore(folder / "versions").list()

    def plain(state: RunState, found: Sequence[DraftVersion]) -> dict[str, Any]:
        return {**to_dict(state), "versions": [to_dict(version) for version in found]}

    state, found = read(run_dir)
    lineages = {folder.name: read(folder) for folder in lineage_folders(run_dir)}
    if as_json:
        listing = plain(state, found)
        if lineages:
            listing["lineages"] = {name: plain(*one) for name, one in lineages.items()}
        print(json.dumps(listing, indent=2))
        return
    if lineages:
        print(f"lineage {DEFAULT_LINEAGE}")
    print(as_text(found, state, now=time.time()))
    for name, (own_state, own) in lineages.items():
        print(f"\nlineage {name}\n{as_text(own, own_state, now=time.time())}")


def lineage_folders(run_dir: Path) -> list[Path]:
    """Return the run directories of a run's lineages but the default one, by name."""
    folder = run_dir / "lineages"
    return sorted(one for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []


def as_text(found: Sequence[DraftVersion], state: RunState, *, now: float) -> str:
    """Return one aligned line for each version; the ones in use are marked."""
    if not found:
        return "no versions yet"
    uses = {state.previous: "previous", state.challenger: "challenger", state.champion: "live"}
    rows = [("version", "steps", "tokens", "acceptance length", "age", "")]
    for version in found:
        length = held_out_acceptance_length(version)
        rows.append(
            (
                str(version.version),
                str(version.global_step),
                str(version.num_tokens_trained),
                "-" if length is None else f"{length:.2f}",
                _age(now - version.created),
                uses.get(version.version, ""),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join([*lines, *_remarks(state)])


def _remarks(state: RunState) -> list[str]:
    """Say what a reader of the table would wonder about."""
    if state.pinned:
        what = "no drafter" if state.champion is None else f"version {state.champion}"
        return [f"a person made {what} live; `aurora promote --auto` lets the swap policy decide"]
    if state.switched_off:
        return ["speculation is switched off: nothing beat decoding without it"]
    return []


def held_out_acceptance_length(version: DraftVersion) -> float | None:
    """Return what a version reached in the held-out replay, None without one."""
    from aurora_core.acceptance import acceptance_length

    holdout = version.holdout
    if holdout is None or not sum(holdout.num_anchors):
        return None
    num_accepted = sum(sum(trace) for trace in holdout.candidate_accepted)
    return acceptance_length(num_accepted, sum(holdout.num_anchors))


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def ui(
    run_dir: RunDirectory = DEFAULT_RUN_DIRECTORY,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 5000,
) -> None:
    """Show the metrics and versions of a run in MLflow's web interface, until Ctrl-C."""
    from aurora_core.mlflow_ui import command, environment

    arguments = command(run_dir, port=port)
    print(f"http://127.0.0.1:{port} shows {run_dir}; Ctrl-C ends", flush=True)
    # Replaces this process: Ctrl-C and termination reach the server directly.
    os.execve(arguments[0], arguments, environment())
