"""The run in MLflow: an observer plugin that logs metrics, verdicts, configuration and report.

Metrics and their steps:

    serve/*   one point per batch of finished requests, over the last of them; step = finished
              requests so far. What asked for no speculation has a speed of its own and is left out
              of the others
    train/*   the learner's own; step = its optimizer steps
    swap/*    one point per swap; step = swaps so far
    report/*  the final figures, without what is a parameter or a curve already
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurora_core import hookimpl
from aurora_core.controller.run_directory import without_secrets
from aurora_core.mlflow_session import CHARTS, MlflowRun, MlflowSession
from aurora_core.model_registry import ModelRegistry
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    Evidence,
    RequestStats,
    SwapReceipt,
    Verdict,
)
from aurora_core.report.figures import comparable_figures
from aurora_core.serving_metrics import last_requests, load_metrics, serving_metrics
from aurora_core.wire import to_dict

if TYPE_CHECKING:
    from aurora_core.config import RunConfig

REPORT_FILES = ("report.json", "report.html", "verdicts.jsonl", "resolved.yaml")
"""Files of a run directory that are attached to the MLflow run when it ends."""

_DECISIVE = ("promote", "roll_back", "drop", "disable_speculation")
"""Verdicts that end something, after which live figures are complete."""
_FORBIDDEN_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
"""MLflow takes neither dots, slashes, colons nor quotes in the names of models."""
_MAX_PARAM_LENGTH = 500
_PARAMS_PER_CALL = 100


class Tracking:
    """Register it with the plugin manager; call `close` off the event loop when the run has ended.

    Hook implementations only queue work: they return in microseconds and never raise because of
    MLflow.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        experiment: str = "aurora",
        uri: str | None = None,
        live_version: int = NO_DRAFTER,
        lineage: str = "",
        files_dir: Path | None = None,
    ) -> None:
        """
        Args:
            run_dir: folder of the run.
            experiment: MLflow experiment; the drafters are the registered model
                `EXPERIMENT-drafter`, or `EXPERIMENT-FOLDER-drafter` where `uri` names a store that
                other runs may use: each run directory has a champion of its own. Those of a
                lineage have its name before `-drafter`.
            uri: MLflow tracking URI; None keeps a SQLite store in the run directory.
            live_version: version that serves at start, `NO_DRAFTER` for none.
            lineage: whose metrics and versions these are; empty for the default one.
            files_dir: folder whose files are attached at the end; None takes the run's.
        """
        self.session = MlflowSession(run_dir, experiment=experiment, uri=uri, name=lineage)
        folder = _FORBIDDEN_IN_NAMES.sub("-", run_dir.absolute().name) or "run"
        parts = [experiment, *([] if uri is None else [folder]), *([lineage] if lineage else [])]
        self.registry = ModelRegistry(
            self.session,
            name="-".join([*parts, "drafter"]),
            label=f"{folder}-{lineage}" if lineage else folder,
        )
        self._run_dir = (files_dir or run_dir).absolute()
        self._lineage = lineage
        self._live_version = live_version
        self._status: Any = "FINISHED"
        self._num_requests = self._num_swaps = self._num_verdicts = self._num_positions = 0
        self._last_requests: tuple[RequestStats, ...] = ()
        self._last_verdict: tuple[int, str] | None = None

    def close(self, *, timeout_s: float = 60.0) -> bool:
        """Make the waiting calls and end the MLflow run. Blocks; False if time ran out."""
        return self.session.close(self._status, timeout_s=timeout_s)

    @hookimpl
    def aurora_run_started(self, config: RunConfig, run_dir: str) -> None:
        """Log the resolved configuration, without secrets, as parameters."""
        params = flatten(without_secrets(config.model_dump(mode="json")))
        items = [(key, str(value)[:_MAX_PARAM_LENGTH]) for key, value in params.items()]
        names = {key: str(params.get(f"{key}.name", "")) for key in ("speculator", "backend")}
        summary = (
            f"{names['speculator']} on {names['backend']}, target {params.get('target')}, "
            f"run directory `{run_dir}`\n\n{CHARTS}"
        )
        tags = {**names, "run_dir": run_dir, "mlflow.note.content": summary}
        if self._lineage:
            tags["lineage"] = self._lineage

        def log(run: MlflowRun) -> None:
            from mlflow.entities import Param

            for start in range(0, len(items), _PARAMS_PER_CALL):
                chunk = [Param(*item) for item in items[start : start + _PARAMS_PER_CALL]]
                run.client.log_batch(run.run_id, params=chunk)
            for key, value in tags.items():
                run.client.set_tag(run.run_id, key, value)

        self.session.submit("logging the configuration", log)

    @hookimpl
    def aurora_requests_finished(self, requests: list[RequestStats]) -> None:
        """Log the acceptance and speed of the last requests, and how many just finished."""
        if requests:
            self._num_requests += len(requests)
            drafted = (len(request.accepted_per_position) for request in requests)
            self._num_positions = max(self._num_positions, *drafted)
            self._last_requests = last_requests(self._last_requests, requests)
            metrics = serving_metrics(
                self._last_requests,
                live_version=self._live_version,
                num_positions=self._num_positions,
            )
            self._log_metrics(metrics | load_metrics(requests), self._num_requests)

    @hookimpl
    def aurora_learner_progress(self, step: int, metrics: dict[str, float]) -> None:
        """Log the learner's metrics under their own names."""
        self._log_metrics(dict(metrics), step)

    @hookimpl
    def aurora_draft_published(self, draft: DraftVersion) -> None:
        """Register the version."""
        self.registry.publish(draft)

    @hookimpl
    def aurora_swap_decided(
        self, draft: DraftVersion, verdict: Verdict, evidence: Evidence
    ) -> None:
        """Keep the verdict with its evidence; a hold that is repeated is kept once."""
        if self._last_verdict == (draft.version, verdict.action):
            return
        self._last_verdict = (draft.version, verdict.action)
        self._num_verdicts += 1
        self.registry.note_verdict(draft, verdict)
        if verdict.action in _DECISIVE:
            if evidence.live is not None and evidence.since_swap is not None:
                self.registry.note_serving(evidence.live, evidence.since_swap)
            if evidence.trial is not None and evidence.trial.challenger.num_requests:
                self.registry.note_serving(draft, evidence.trial.challenger)
        name = f"verdicts/{self._num_verdicts:05d}-v{draft.version:06d}-{verdict.action}.json"
        record = {"verdict": to_dict(verdict), "evidence": to_dict(evidence)}

        def log(run: MlflowRun) -> None:
            run.client.log_dict(run.run_id, record, name)
            run.client.set_tag(run.run_id, "last_verdict", f"{verdict.action}: {verdict.reason}")

        self.session.submit("logging a verdict", log)
        numbers = {f"verdict/{key}": value for key, value in verdict.numbers.items()}
        self._log_metrics(numbers, draft.version)

    @hookimpl
    def aurora_draft_swapped(
        self, draft: DraftVersion | None, previous: DraftVersion | None, receipt: SwapReceipt
    ) -> None:
        """Log what went live and what that cost; the bookkeeping moves the aliases."""
        self._num_swaps += 1
        self._live_version = receipt.version
        metrics: dict[str, float] = {
            "swap/count": self._num_swaps,
            "swap/live_version": receipt.version,
        }
        if receipt.stall_ms > 0:  # an engine that changes by itself measures nothing
            metrics |= {"swap/stall_ms": receipt.stall_ms, "swap/load_ms": receipt.load_ms}
        self._log_metrics(metrics, self._num_swaps)

    @hookimpl
    def aurora_run_finished(
        self, report: dict[str, object] | None, error: BaseException | None
    ) -> None:
        """Log the report's figures and files."""
        if error is not None:
            self._status = "FAILED" if isinstance(error, Exception) else "KILLED"
        if report is not None:
            figures = comparable_figures(report)
            named = {f"report/{key}": value for key, value in figures.items()}
            self._log_metrics(named, self._num_requests)
        run_dir = self._run_dir
        # Without a report, what lies there is one of an earlier run.
        names = [one for one in REPORT_FILES if report is not None or "report" not in one]

        def log(run: MlflowRun) -> None:
            for name in names:
                if (run_dir / name).is_file():
                    run.client.log_artifact(run.run_id, str(run_dir / name))

        self.session.submit("attaching the report", log)

    def _log_metrics(self, metrics: Mapping[str, object], step: int) -> None:
        now = int(time.time() * 1000)
        finite = {key: value for key, value in metrics.items() if _is_finite(value)}

        def log(run: MlflowRun) -> None:
            from mlflow.entities import Metric

            points = [Metric(key, float(str(value)), now, step) for key, value in finite.items()]
            run.client.log_batch(run.run_id, metrics=points)

        if finite:
            self.session.submit("logging metrics", log, droppable=True)


def flatten(value: object, prefix: str = "") -> dict[str, Any]:
    """Return nested plain data as one level, keys joined by dots; lists become text."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _is_finite(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)  # type: ignore[arg-type]
