"""`aurora run CONFIG` with a learner that trains nothing and publishes what is laid before it."""

from __future__ import annotations

import sys
from pathlib import Path

PUBLISHER = "aurora_core.experiments.publisher"


def main(arguments: list[str]) -> int:
    """Run `python -m aurora_core.experiments.untrained_run CONFIG`; return the exit status."""
    from aurora_core.cli.application import report_error
    from aurora_core.cli.run import load
    from aurora_core.controller.run import run

    try:
        settings, plugins = load(Path(arguments[0]), (), ())
        return run(settings, plugins, learner_module=PUBLISHER)
    except BaseException as error:
        return report_error(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
