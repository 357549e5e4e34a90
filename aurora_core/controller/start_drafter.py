"""A trained drafter that a new run begins with: it is version 1, and live from the first request.

The learner goes on from it as from any live version.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from aurora_core.controller.run_directory import RunDirectory
from aurora_core.engine_process.placeholder import CANNOT_BE_MADE, placeholder_command
from aurora_core.errors import ConfigError
from aurora_core.interfaces import ServePlan
from aurora_core.process_failure import find_failure
from aurora_core.versions import RunState, write_run_state

_FIRST = 1


def stage_start(plan: ServePlan, directory: RunDirectory) -> None:
    """Make the drafter that a speculator starts from the live version of a new run. Blocks.

    A directory in which a run has begun is left as it is. Making the drafter needs torch, which the
    controller does not import, so a process of its own does it.

    Args:
        plan: names the speculator, its options and the target.
        directory: of the run, locked.

    Raises:
        ConfigError: the drafter cannot be made, or the directory cannot be written.
    """
    if directory.state.exists():
        return
    with directory.writable():
        if not directory.store.numbers():
            _stage(plan, directory)
        # A run that was killed in between has staged it, and learned nothing yet.
        if list(directory.store.numbers()) == [_FIRST]:
            write_run_state(directory.state, RunState(champion=_FIRST))


def _stage(plan: ServePlan, directory: RunDirectory) -> None:
    def copy(folder: Path) -> None:
        shutil.copytree(made, folder, dirs_exist_ok=True)

    with tempfile.TemporaryDirectory(dir=directory.path, prefix=".start-") as scratch:
        made = Path(scratch) / "drafter"
        finished = subprocess.run(
            placeholder_command(plan, made),
            check=False,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if reason := find_failure(finished, CANNOT_BE_MADE):
            raise ConfigError(reason)
        directory.store.stage(
            _FIRST,
            copy,
            parent=None,
            speculator=plan.speculator,
            target_fingerprint=plan.target.fingerprint,
            global_step=0,
            num_tokens_trained=0,
        )
