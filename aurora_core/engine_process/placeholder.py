"""A drafter for engines that must be given one before the learner has published any.

Such an engine sizes its caches and compiles its kernels for the drafter it starts with. It is
given a fresh one, of the very shapes that the learner's first version will have, and does not
draft with it: its version is `NO_DRAFTER`. The first version that is promoted replaces it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio

from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from aurora_core.process_failure import find_failure
from aurora_core.wire import to_json

CANNOT_BE_MADE = "the drafter that the engine starts with cannot be made"
_MODULE = "aurora_core.engine_process.placeholder_process"
_PLAN_FILE = "plan.json"
_WEIGHTS_FILE = "model.safetensors"


async def make_placeholder(plan: ServePlan, folder: Path) -> Path:
    """Write what the speculator's `save` makes of a fresh drafter, in a process of its own.

    Making one is what `build_module(weights, ())` does; it needs torch, which the controller does
    not import. A complete folder is left as it is, so that restarts cost nothing.

    Args:
        plan: names the speculator, its options and the target.
        folder: of the checkpoint; replaced if it is incomplete.

    Raises:
        BackendError: the drafter cannot be made; the message is the speculator's own if it has one.
    """
    if (folder / _WEIGHTS_FILE).is_file():
        return folder
    finished = await anyio.run_process(
        placeholder_command(plan, folder),
        check=False,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    if reason := find_failure(finished, CANNOT_BE_MADE):
        raise BackendError(reason)
    return folder


def placeholder_command(plan: ServePlan, folder: Path) -> list[str]:
    """Write the plan beside the folder and return the command that makes a fresh drafter there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    plan_path = folder.parent / f"{folder.name}-{_PLAN_FILE}"
    plan_path.write_text(to_json(plan), encoding="utf-8")
    return [sys.executable, "-m", _MODULE, str(plan_path), str(folder)]
