"""Whether Lightning can train as configured, asked before a run is started.

Lightning and torch take seconds to import, so a process of its own finds out, and only where the
configuration leaves the defaults, which hold on every machine. It makes the learner's own trainer.

    python -m aurora_core.learner.trainer_check LEARNER_SECTION_AS_JSON
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aurora_core.config_learner import LearnerSection
from aurora_core.errors import AuroraError, ConfigError
from aurora_core.process_failure import USER_ERROR, find_failure

_OF_LIGHTNING = {"accelerator", "devices", "strategy", "precision"}


def check_trainer(options: LearnerSection) -> None:
    """See that the learner will find the devices, strategy and precision it is told. Blocks.

    Raises:
        ConfigError: it will not; the sentence is the one that the learner would end with.
    """
    if options.model_dump(include=_OF_LIGHTNING) == LearnerSection().model_dump(
        include=_OF_LIGHTNING
    ):
        return
    finished = subprocess.run(
        [sys.executable, "-m", "aurora_core.learner.trainer_check", options.model_dump_json()],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    reason = find_failure(
        finished,
        "whether the learner can train as configured cannot be found out",
        remedy="look at `aurora doctor`",
    )
    if reason is not None:
        raise ConfigError(reason)


def main(arguments: Sequence[str]) -> int:
    """Make a trainer with the learner section on the command line; return the exit status."""
    from aurora_core.learner.lightning_trainer import make_trainer

    options = LearnerSection.model_validate_json(arguments[0])
    try:
        with tempfile.TemporaryDirectory(prefix="aurora-check-") as folder:
            make_trainer(options, [], folder=Path(folder))
    except AuroraError as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
