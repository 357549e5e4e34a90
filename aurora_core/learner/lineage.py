"""What all weights of one lineage have in common, and what they began as.

A lineage is one drafter that keeps learning: its draft vocabulary and whatever else was chosen from
the first traces never change. The folder `lineage` holds the drafter as it was before the first
step; a restarted learner, and the other ranks of a multi-device one, build the module from it and
not from traces, so that nothing is chosen twice.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurora_core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import nn

    from aurora_core.interfaces import Speculator
    from aurora_core.records import TargetSpec
    from aurora_core.target.weights import TargetWeights

log = logging.getLogger(__name__)

_WHAT = {
    "target_fingerprint": "another target",
    "speculator": "another speculator",
    "speculator_options": "other speculator options",
}


def lineage_identity(target: TargetSpec, name: str, speculator: Speculator) -> dict[str, Any]:
    """Return what must be equal for weights to be continued; plain data.

    Args:
        target: that the drafter learns from.
        name: under which the speculator is registered.
        speculator: with its options.
    """
    return {
        "target_fingerprint": target.fingerprint,
        "speculator": name,
        # As validated, so that a default written out is no difference.
        "speculator_options": speculator.options.model_dump(
            mode="json", exclude=set(speculator.options.serving_only)
        ),
    }


def check_identity(found: Mapping[str, Any], expected: Mapping[str, Any], folder: Path) -> None:
    """Refuse to continue what was learned for something else.

    Raises:
        CheckpointError: they differ; the message says in what.
    """
    for key, what in _WHAT.items():
        ours, theirs = expected[key], found.get(key)
        if ours == theirs:
            continue
        if isinstance(ours, dict) and isinstance(theirs, dict):
            names = sorted(n for n in ours | theirs if ours.get(n) != theirs.get(n))
            if not names:
                continue  # an option that is newer than the folder, and not set
            ours, theirs = ({n: side.get(n) for n in names} for side in (ours, theirs))
        raise CheckpointError(
            f"what {str(folder)!r} holds was learned for {what} ({theirs!r}, now {ours!r}); "
            "use another run_dir, go back to what it was, or remove that folder to learn anew"
        )


def check_continuable(
    learner_dir: Path, target: TargetSpec, name: str, speculator: Speculator
) -> None:
    """See that a learner would go on from what it left in its folder. Imports no torch.

    The controller asks before it starts an engine: the learner's own refusal comes after clients
    have been served.

    Args:
        learner_dir: the learner's folder; it need not exist.
        target, name, speculator: as for `lineage_identity`.

    Raises:
        CheckpointError: the folder cannot be read, or belongs to something else.
    """
    lineage = Lineage(learner_dir / "lineage", lineage_identity(target, name, speculator))
    if speculator.trainable and lineage.exists:
        lineage.check()


class Lineage:
    """The folder of a lineage; complete or absent at any moment.

    Args:
        folder: `lineage` below the learner's folder.
        identity: of the plan in hand.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder, self.identity = folder, identity

    @property
    def exists(self) -> bool:
        """Whether the lineage has begun."""
        return self.folder.exists()

    def begin(self, drafter: nn.Module, speculator: Speculator, *, parent: int | None) -> None:
        """Store the drafter from which everything follows.

        Args:
            drafter: before the first step.
            speculator: saves it.
            parent: version whose weights it holds; None for fresh ones.
        """
        partial = self.folder.with_name(f"{self.folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "drafter").mkdir(parents=True)
        speculator.save(drafter, partial / "drafter")
        text = json.dumps({"identity": self.identity, "parent": parent}, indent=2)
        (partial / "lineage.json").write_text(text, encoding="utf-8")
        partial.rename(self.folder)

    def open(self, speculator: Speculator, weights: TargetWeights) -> tuple[nn.Module, int | None]:
        """Return (drafter before the first step, its parent).

        Raises:
            CheckpointError: unreadable, or begun for something else.
        """
        parent = self.check()
        return speculator.load(self.folder / "drafter", weights), parent

    def check(self) -> int | None:
        """Return the parent of a lineage that may go on.

        Raises:
            CheckpointError: unreadable, or begun for something else.
        """
        path = self.folder / "lineage.json"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            identity, parent = dict(stored["identity"]), stored["parent"]
            parent = None if parent is None else int(parent)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{str(path)!r} cannot be read; remove {str(self.folder.parent)!r} to learn anew"
            ) from error
        check_identity(identity, self.identity, self.folder.parent)
        return parent
