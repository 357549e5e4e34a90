"""A learner that trains nothing: it publishes what is laid before it.

    experiment -> lay_before() -> LEARNER_DIR/outbox/000001.json -> stage -> "published" -> judge

It is started by the controller in the learner's place, with the learner's plan, speaks its
protocol and writes to the same store, so that a version comes to be judged as any other does.
Imports no torch.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from aurora_core import wire
from aurora_core.learner.control import Control, EventWriter
from aurora_core.learner.plan import LearnerPlan
from aurora_core.learner.protocol import Published, Started, Stopped
from aurora_core.learner.start import run_by_plan
from aurora_core.records import Holdout
from aurora_core.versions import VersionStore

_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What is to be published."""

    folder: str
    """Files of the version, as `Speculator.save` writes them; they are copied."""
    holdout: Holdout | None
    """What is said of it."""


def lay_before(learner_dir: Path, publication: Publication) -> None:
    """Have a version published soon.

    Args:
        learner_dir: of the run.
        publication: what.
    """
    outbox = learner_dir / "outbox"
    outbox.mkdir(parents=True, exist_ok=True)
    partial = outbox / f".{secrets.token_hex(4)}"
    partial.write_text(wire.to_json(publication), encoding="utf-8")
    partial.rename(outbox / f"{len(list(outbox.iterdir())):06d}.json")


def main(arguments: list[str]) -> int:
    """Run `python -m aurora_core.experiments.publisher PLAN.json`; return the exit status."""
    return run_by_plan(publish_what_comes, arguments, module="aurora_core.experiments.publisher")


def publish_what_comes(plan: LearnerPlan, *, control: Control, events: EventWriter) -> None:
    """Publish until told to stop.

    Args:
        plan: of the learner whose place this takes.
        control: says when to stop.
        events: where to report.

    Raises:
        CheckpointError: what was laid before has no weights.
    """
    store, outbox = VersionStore(Path(plan.versions_dir)), Path(plan.learner_dir) / "outbox"
    outbox.mkdir(parents=True, exist_ok=True)
    newest = store.list()[-1:]
    step = newest[0].global_step if newest else 0
    events.write(Started(step=step, resumed=bool(newest)))
    while not control.is_stopping:
        for path in sorted(outbox.glob("*.json")):
            publication = wire.from_json(Publication, path.read_bytes())
            path.unlink()
            step += 1
            _publish(publication, plan, store, step=step, events=events)
        control.rest(_POLL_S)
    events.write(Stopped(step=step))


def _publish(
    publication: Publication,
    plan: LearnerPlan,
    store: VersionStore,
    *,
    step: int,
    events: EventWriter,
) -> None:
    newest = store.list()[-1:]
    draft = store.stage(
        store.next_version(),
        lambda path: _copy(Path(publication.folder), path),
        parent=newest[0].version if newest else None,
        speculator=plan.speculator,
        target_fingerprint=plan.target.fingerprint,
        global_step=step,
        num_tokens_trained=newest[0].num_tokens_trained if newest else 0,
        holdout=publication.holdout,
    )
    events.write(Published(version=draft))


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
