"""The folder of one poison experiment: a file for each case that is done."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from aurora_core import wire
from aurora_core.errors import ConfigError
from aurora_core.experiments.poison_report import ARMS, LEARNERS, PoisonCase, PoisonPlan
from aurora_core.experiments.poisoned_weights import POISONS
from aurora_core.traffic.results import write_json


class CaseFolder:
    """Cases of one champion and one plan; further ones may be added later.

    Args:
        path: the folder; made if it is not there.
        champion: version that is poisoned.
        plan: sizes.

    Raises:
        ConfigError: it cannot be used, or holds results of another champion or other sizes.
    """

    def __init__(self, path: Path, *, champion: int, plan: PoisonPlan) -> None:
        self.path = path
        settings = {"champion": champion, "plan": wire.to_dict(plan)}
        file = path / "plan.json"
        try:
            (path / "cases").mkdir(parents=True, exist_ok=True)
            found = json.loads(file.read_text("utf-8")) if file.exists() else settings
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{str(path)!r} cannot be used: {error}; name another folder with --out"
            ) from error
        if found != settings:
            raise ConfigError(
                f"{str(path)!r} holds results of another champion or other sizes; give the same "
                "again, or another folder with --out"
            )
        write_json(file, settings)

    def has(self, arm: str, learner: str, poison: str) -> bool:
        """Whether a case is done."""
        return self._file(arm, learner, poison).exists()

    def write(self, case: PoisonCase) -> None:
        """Keep a case.

        Raises:
            ConfigError: it cannot be written.
        """
        write_json(self._file(case.arm, case.learner, case.poison), wire.to_dict(case))

    def cases(self) -> tuple[PoisonCase, ...]:
        """Return all cases that are done, by arm, learner and poison.

        Raises:
            ConfigError: one of them cannot be read.
        """
        files = [
            self._file(arm, learner, poison)
            for arm in ARMS
            for learner in LEARNERS
            for poison in POISONS
        ]
        return tuple(_read(file) for file in files if file.exists())

    def new_run(self, name: str) -> Path:
        """Return the path of a run directory that does not exist yet."""
        number = 1
        while (path := self.path / f"{name}-{number}").exists():
            number += 1
        return path

    def _file(self, arm: str, learner: str, poison: str) -> Path:
        return self.path / "cases" / f"{arm}-{learner}-{poison.replace(' ', '-')}.json"


def _read(file: Path) -> PoisonCase:
    try:
        return wire.from_json(PoisonCase, file.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{str(file)!r} cannot be read; delete it to have the case run again"
        ) from error
