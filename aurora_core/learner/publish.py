"""Publishing versions: export, read back, score on held-out traces, stage, say so."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
from safetensors import SafetensorError

from aurora_core.acceptance import holdout_acceptance_length
from aurora_core.errors import CheckpointError
from aurora_core.learner.holdout import HoldoutReplay, Score, compare
from aurora_core.learner.protocol import Published
from aurora_core.learner.random_state import random_state, restore_random_state
from aurora_core.learner.rewards import advantage
from aurora_core.records import DraftVersion, Holdout, Trace

if TYPE_CHECKING:
    from torch import nn

    from aurora_core.config import LearnerSection
    from aurora_core.interfaces import TraceReader
    from aurora_core.learner.control import Control, EventWriter
    from aurora_core.learner.module import LearnerModule
    from aurora_core.learner.progress import ReportProgress
    from aurora_core.target.weights import TargetWeights
    from aurora_core.versions import VersionStore

log = logging.getLogger(__name__)


class PublishDraft(lightning.Callback):
    """Publishes the first version after a few steps, later ones by time or steps.

    Rank 0 alone has one. Training stands still while a version is scored and written. What is
    scored is what will be served: the export, read back as strictly as the engine will, with
    whatever rounding the format has. An export that cannot be read back ends the learner.

    Args:
        module: holds the drafter.
        store: where versions go, and where the live one is read from.
        reader: gives held-out traces.
        weights: of the target, for loading.
        options: when, and on how many traces.
        folder: for the export before it is staged.
        replay: scores drafters.
        progress: numbers to publish with.
        control: knows the live version.
        events: where to say it.
    """

    def __init__(
        self,
        module: LearnerModule,
        store: VersionStore,
        reader: TraceReader,
        weights: TargetWeights,
        options: LearnerSection,
        *,
        folder: Path,
        replay: HoldoutReplay,
        progress: ReportProgress,
        control: Control,
        events: EventWriter,
    ) -> None:
        self.module, self.store, self.reader, self.weights = module, store, reader, weights
        self.options, self.replay, self.progress = options, replay, progress
        self.control, self.events = control, events
        self._export = folder / "export.partial"
        self._trainer: lightning.Trainer | None = None
        self._is_first = True
        self._published_step = 0
        self._published_at = 0.0

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Count from here."""
        self._trainer = trainer
        self._is_first = not self.module.has_published
        self._published_step = 0 if self._is_first else trainer.global_step
        self._published_at = time.monotonic()

    def on_train_batch_end(self, *_: Any) -> None:
        """Publish if it is time."""
        self.publish_if_due()

    def on_train_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Publish the last steps of a learner that ends by itself; a stop is not kept waiting."""
        if not self.control.is_stopping and trainer.global_step > self._published_step:
            self._publish(trainer)

    def publish_if_due(self) -> None:
        """Publish if enough was learned and it is time; also called while training rests."""
        if self._trainer is None:
            return
        num_steps = self._trainer.global_step - self._published_step
        every_steps = self.options.publish_every_steps
        if self._is_first:
            is_due = num_steps >= self.options.first_publish_steps
        else:
            elapsed_s = time.monotonic() - self._published_at
            is_due = elapsed_s >= self.options.publish_every_s or 0 < every_steps <= num_steps
        if is_due and num_steps > 0:
            self._publish(self._trainer)

    def _publish(self, trainer: lightning.Trainer) -> None:
        module = self.module
        # Whether and when a version is published must not change what is learned.
        before = random_state()
        self._published_step, self._is_first = trainer.global_step, False
        try:
            draft, scores = self._score_and_stage(trainer)
        except (OSError, SafetensorError) as error:  # the latter is how safetensors tells of a disk
            log.warning("no version was published, training goes on: %s", error)
        else:
            self.replay.remember(draft.version, scores)
            module.newest_version, module.has_published = draft.version, True
            self.events.write(Published(version=draft))
        finally:
            restore_random_state(before)
            self._published_at = time.monotonic()
            shutil.rmtree(self._export, ignore_errors=True)

    def _score_and_stage(self, trainer: lightning.Trainer) -> tuple[DraftVersion, dict[str, Score]]:
        module, speculator = self.module, self.module.speculator
        shutil.rmtree(self._export, ignore_errors=True)
        self._export.mkdir()
        average = module.average
        with average.applied_to(module.drafter) if average else contextlib.nullcontext():
            speculator.save(module.drafter, self._export)
        candidate = speculator.load(self._export, self.weights).to(module.device)
        traces = self.reader.holdout(self.options.holdout_traces)
        scores = self.replay.score(candidate, traces)
        holdout = self._compare(scores, traces)
        draft = self.store.stage(
            self.store.next_version(),
            self._move_export,
            parent=module.newest_version,
            speculator=module.lineage["speculator"],
            target_fingerprint=module.lineage["target_fingerprint"],
            global_step=self._published_step,
            num_tokens_trained=module.num_tokens_trained,
            metrics=self.progress.window(trainer) | _holdout_metrics(holdout),
            holdout=holdout,
            objective=str(getattr(speculator.options, "objective", "")),
            data_window=self.progress.stream.data_window,
        )
        self.progress.stream.data_window = None
        return draft, scores

    def _move_export(self, path: Path) -> None:
        for file in self._export.iterdir():
            shutil.move(file, path / file.name)

    def _compare(self, scores: Mapping[str, Score], traces: list[Trace]) -> Holdout | None:
        live_version = self.control.live_version
        if live_version is None or not scores:
            return compare(scores, None, live_version=None)

        def load() -> nn.Module:
            # Checked as strictly as by the engine, and from the same files.
            path = Path(self.store.verify(live_version).path)
            return self.module.speculator.load(path, self.weights).to(self.module.device)

        try:
            live = self.replay.version_scores(live_version, load, traces)
        except CheckpointError as error:
            # Without a comparison no policy that asks for evidence promotes the version.
            log.warning("the live version cannot be compared with: %s", error)
            return None
        return compare(scores, live, live_version=live_version)


def _holdout_metrics(holdout: Holdout | None) -> dict[str, float]:
    if holdout is None:
        return {}
    anchors = holdout.num_anchors
    metrics = {
        "holdout/num_traces": float(len(anchors)),
        "holdout/acceptance_length": holdout_acceptance_length(anchors, holdout.candidate_accepted),
    }
    if holdout.live_version is not None:
        metrics["holdout/live_acceptance_length"] = holdout_acceptance_length(
            anchors, holdout.live_accepted
        )
    gained = advantage(holdout)
    if gained is not None:
        metrics["holdout/advantage"] = gained.mean
        if math.isfinite(gained.error):  # or the gate would take it for a diverged drafter's
            metrics["holdout/advantage_error"] = gained.error
    return metrics
