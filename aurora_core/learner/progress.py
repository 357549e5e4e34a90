"""The learner's numbers, at most once a second.

train/loss               mean over the supervised positions since the last report
train/<name>             the speculator's own metrics, mean over the same batches
train/num_tokens         response positions trained on so far, replays included
train/tokens_per_s       of the same, since the last report
train/gradient_norm      before clipping, mean
train/learning_rate      of AdamW; train/matrix_learning_rate of Muon
train/staleness          newest version of the lineage minus the oldest draft version of a
                         trace, mean over the latest batch; absent without drafters in it
train/skipped_batches    so far: empty, or with a loss or gradient that is not finite
train/skipped_traces     so far: refused by the speculator
train/memory_mib         resident memory of this process
reward/per_step          accepted draft tokens of a step with drafts, mean over the traces that were
                         trained on for the first time since the last report
reward/return            the sum over a request, mean over those of the same traces with drafts
reward/version_<N>       reward per step of draft version N, over all such traces so far; reported
                         when more of them came
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import lightning
import psutil

from aurora_core.learner.protocol import Progress

if TYPE_CHECKING:
    from aurora_core.learner.control import EventWriter
    from aurora_core.learner.module import LearnerModule, StepOutcome
    from aurora_core.learner.stream import TraceStream

_REPORT_EVERY_S = 1.0


class ReportProgress(lightning.Callback):
    """Collects what came of the batches and reports it.

    Args:
        module: knows about batches.
        stream: knows about traces.
        events: where to.
        every_s: seconds between two reports, at least.
    """

    def __init__(
        self,
        module: LearnerModule,
        stream: TraceStream,
        events: EventWriter,
        *,
        every_s: float = _REPORT_EVERY_S,
    ) -> None:
        self.module, self.stream, self.events, self.every_s = module, stream, events, every_s
        self._latest: dict[str, float] = {}
        self._outcomes: list[StepOutcome] = []
        self._reported_at = time.monotonic()
        self._process = psutil.Process()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Take in one batch; report if it is time."""
        assert self.module.outcome is not None
        self._outcomes.append(self.module.outcome)
        if time.monotonic() - self._reported_at >= self.every_s:
            self.report(trainer)

    def on_train_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Report what is left, so that the last numbers are final."""
        if self._outcomes:
            self.report(trainer)

    def report(self, trainer: lightning.Trainer) -> None:
        """Send the numbers since the last report."""
        self._latest = self.window(trainer)
        self._outcomes, self._reported_at = [], time.monotonic()
        self.stream.rewards.begin_window()
        self.events.write(Progress(step=trainer.global_step, metrics=self._latest))

    def window(self, trainer: lightning.Trainer) -> dict[str, float]:
        """Return the numbers since the last report; those of the last one if nothing came since."""
        if not self._outcomes:
            return self._latest
        learned = [outcome for outcome in self._outcomes if outcome.skipped is None]
        num_tokens = sum(outcome.num_tokens for outcome in learned)
        matrices, others = trainer.optimizers[0].param_groups
        metrics: dict[str, float] = {}
        for name in sorted({name for outcome in learned for name in outcome.metrics}):
            values = [float(o.metrics[name]) for o in learned if name in o.metrics]
            metrics[f"train/{name}"] = sum(values) / len(values)
        metrics |= {
            "train/num_tokens": float(self.module.num_tokens_trained),
            "train/tokens_per_s": num_tokens / max(time.monotonic() - self._reported_at, 1e-9),
            "train/matrix_learning_rate": float(matrices["lr"]),
            "train/learning_rate": float(others["lr"]),
            "train/skipped_batches": float(self.module.num_skipped_batches),
            "train/skipped_traces": float(self.stream.num_skipped_traces),
            "train/memory_mib": self._process.memory_info().rss / 2**20,
        }
        if learned:
            metrics["train/loss"] = sum(o.loss * o.num_tokens for o in learned) / max(1, num_tokens)
            metrics["train/gradient_norm"] = sum(o.gradient_norm for o in learned) / len(learned)
        newest, drafted = self.module.newest_version, self.stream.draft_version
        if newest is not None and drafted is not None:
            metrics["train/staleness"] = newest - drafted
        metrics |= self.stream.rewards.metrics()
        return {name: value for name, value in metrics.items() if math.isfinite(value)}
