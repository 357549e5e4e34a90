"""Publishing versions: score on held-out traces, write, say so."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning

from aurora_core.errors import CheckpointError
from aurora_core.learner.holdout import HoldoutReplay, Score, acceptance_length, compare
from aurora_core.learner.protocol import Published
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

    Rank 0 alone has one. Training stands still while a version is scored and written.

    Args:
        module: holds the drafter.
        store: where versions go, and where the live one is read from.
        reader: gives held-out traces.
        weights: of the target, for loading the live version.
        options: when, and on how many traces.
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
        replay: HoldoutReplay,
        progress: ReportProgress,
        control: Control,
        events: EventWriter,
    ) -> None:
        self.module, self.store, self.reader, self.weights = module, store, reader, weights
        self.options, self.replay, self.progress = options, replay, progress
        self.control, self.events = control, events
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
        if not self.control.stopping.is_set() and trainer.global_step > self._published_step:
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
        self._published_step, self._is_first = trainer.global_step, False
        averaged = module.average.applied_to(module.drafter) if module.average else None
        with averaged or contextlib.nullcontext():
            try:
                draft, scores = self._score_and_stage(trainer)
            except OSError as error:
                log.warning("no version was published, training goes on: %s", error)
                draft = None
        self._published_at = time.monotonic()
        if draft is None:
            return
        self.replay.remember(draft.version, scores)
        module.newest_version, module.has_published = draft.version, True
        self.events.write(Published(version=draft))

    def _score_and_stage(self, trainer: lightning.Trainer) -> tuple[DraftVersion, dict[str, Score]]:
        module, speculator, drafter = self.module, self.module.speculator, self.module.drafter
        traces = self.reader.holdout(self.options.holdout_traces)
        scores = self.replay.score(drafter, traces)
        holdout = self._compare(scores, traces)
        draft = self.store.stage(
            self.store.next_version(),
            lambda path: speculator.save(drafter, path),
            parent=module.newest_version,
            speculator=module.lineage["speculator"],
            target_fingerprint=module.lineage["target_fingerprint"],
            global_step=self._published_step,
            num_tokens_trained=module.num_tokens_trained,
            metrics=self.progress.window(trainer) | _holdout_metrics(holdout),
            holdout=holdout,
        )
        return draft, scores

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
        "holdout/acceptance_length": acceptance_length(anchors, holdout.candidate_accepted),
    }
    if holdout.live_version is not None:
        live = acceptance_length(anchors, holdout.live_accepted)
        metrics["holdout/live_acceptance_length"] = live
    return metrics
