"""How a process in the learner's place begins and ends: signals, pipes, its plan, its status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from aurora_core.errors import AuroraError, ConfigError
from aurora_core.learner.control import Control, EventWriter, claim_stdout
from aurora_core.learner.plan import LearnerPlan, read_plan
from aurora_core.learner.protocol import USER_ERROR


class Learning(Protocol):
    """What such a process does until it is told to stop."""

    def __call__(self, plan: LearnerPlan, *, control: Control, events: EventWriter) -> None:
        """Learn; raises `AuroraError` for what is the user's to mend."""


def run_by_plan(
    learning: Learning, arguments: Sequence[str], *, module: str, has_pipes: bool = True
) -> int:
    """Run `python -m MODULE PLAN.json` and return its exit status.

    Args:
        learning: given the plan, the commands and the events.
        arguments: of the command line.
        module: for the message about a wrong command line.
        has_pipes: whether stdin and stdout lead to the controller; False in the processes that a
            multi-device launcher adds, which neither obey nor report.
    """
    control = Control()
    control.catch_signals()
    events = EventWriter(claim_stdout() if has_pipes else None, control)
    try:
        if len(arguments) != 1:
            raise ConfigError(f"usage: python -m {module} PLAN.json")
        plan = read_plan(Path(arguments[0]))
        if plan.initial_version is not None:
            control.live_version = plan.initial_version.version
        if has_pipes:
            control.listen(0)
        learning(plan, control=control, events=events)
    except AuroraError as error:
        sys.stderr.write(f"{error}\n")
        return USER_ERROR
    return 0
