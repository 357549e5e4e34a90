"""Drafter versions in the MLflow model registry: files, figures, parents and aliases.

    champion    the live version            previous    where a roll back goes
    challenger  the newest version that is neither

A mirror: the version folders and `state.json` decide, so a registry that fails changes nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core.acceptance import holdout_acceptance_length
from aurora_core.records import DraftVersion, ServingStats, Verdict

if TYPE_CHECKING:
    from aurora_core.mlflow_session import MlflowRun, MlflowSession

logger = logging.getLogger(__name__)

_MAX_TAG_LENGTH = 4000
_LOGGED_MODEL_PARAMS = (
    *("draft_version", "parent", "speculator", "objective"),
    *("global_step", "num_tokens_trained", "data_window"),
)
"""Tags that MLflow puts beside each other only where they are parameters too."""
_REGISTRY_TAGS = (
    *("draft_version", "parent", "speculator", "objective"),
    *("global_step", "target_fingerprint", "checksum"),
)
"""The registry's table shows every tag in a line of its own; the logged model has all of them."""


class ModelRegistry:
    """Mirrors what happens to versions. Methods return at once; the session's thread works."""

    def __init__(self, session: MlflowSession, *, name: str, label: str = "draft") -> None:
        """
        Args:
            session: makes the calls.
            name: of the registered model; created if it does not exist.
            label: begins the names of logged models: in a store that several runs use, it tells
                their versions apart.
        """
        self.name, self._label = name, label
        self._session = session
        # Only touched on the session's thread: (version, checksum) -> number in the registry.
        self._registered: dict[tuple[str, str], str] | None = None
        self._challenger: str | None = None

    def publish(self, draft: DraftVersion) -> None:
        """Register a version with its files and figures, and make it the challenger."""
        self._session.submit(
            f"registering version {draft.version}", lambda run: self._challenge(run, draft)
        )

    def set_live(self, live: DraftVersion | None, previous: DraftVersion | None) -> None:
        """Move the aliases `champion` and `previous`; None removes one."""
        self._session.submit("moving aliases", lambda run: self._move(run, live, previous))

    def note_serving(self, draft: DraftVersion, stats: ServingStats) -> None:
        """Log what a version did on live requests beside its held-out figures."""
        self._session.submit(
            f"logging live figures of version {draft.version}",
            lambda run: self._serve(run, draft, stats),
            droppable=True,
        )

    def note_verdict(self, draft: DraftVersion, verdict: Verdict) -> None:
        """Write the last verdict on a version beside it."""
        self._session.submit(
            f"noting the verdict on version {draft.version}",
            lambda run: self._note(run, draft, verdict),
        )

    def retire(self, draft: DraftVersion) -> None:
        """Delete the files of a version that was pruned; its figures stay."""
        self._session.submit(
            f"retiring version {draft.version}", lambda run: self._retire(run, draft)
        )

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far was tried; False if time ran out. Blocks."""
        return self._session.flush(timeout_s)

    def _challenge(self, run: MlflowRun, draft: DraftVersion) -> None:
        number = self._ensure_registered(run, draft)
        run.client.set_registered_model_alias(self.name, "challenger", number)
        self._challenger = number

    def _move(
        self, run: MlflowRun, live: DraftVersion | None, previous: DraftVersion | None
    ) -> None:
        self._known(run)  # creates the model, which an alias needs even to be removed
        for alias, draft in (("champion", live), ("previous", previous)):
            if draft is None:
                run.client.delete_registered_model_alias(self.name, alias)
                continue
            number = self._ensure_registered(run, draft)
            run.client.set_registered_model_alias(self.name, alias, number)
            if number == self._challenger:
                run.client.delete_registered_model_alias(self.name, "challenger")
                self._challenger = None

    def _note(self, run: MlflowRun, draft: DraftVersion, verdict: Verdict) -> None:
        number = self._ensure_registered(run, draft)
        for key, value in (("verdict", verdict.action), ("verdict_reason", verdict.reason)):
            run.client.set_model_version_tag(self.name, number, key, value[:_MAX_TAG_LENGTH])
        text = f"{describe(draft)}\n\n{verdict.action}: {verdict.reason}"
        run.client.update_model_version(self.name, number, description=text[:_MAX_TAG_LENGTH])

    def _serve(self, run: MlflowRun, draft: DraftVersion, stats: ServingStats) -> None:
        number = self._ensure_registered(run, draft)
        source = run.client.get_model_version(self.name, number).source
        self._log(run, draft, str(source).removeprefix("models:/"), live_figures(stats))

    def _retire(self, run: MlflowRun, draft: DraftVersion) -> None:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        number = self._known(run).get(_identity(draft))
        if number is None:
            return
        source = run.client.get_model_version(self.name, number).source
        logged = run.client.get_logged_model(str(source).removeprefix("models:/"))
        get_artifact_repository(logged.artifact_location).delete_artifacts()  # type: ignore[no-untyped-call]
        run.client.set_model_version_tag(self.name, number, "files", "deleted")

    def _ensure_registered(self, run: MlflowRun, draft: DraftVersion) -> str:
        known = self._known(run)
        identity = _identity(draft)
        if identity not in known:
            known[identity] = self._register(run, draft)
        return known[identity]

    def _known(self, run: MlflowRun) -> dict[tuple[str, str], str]:
        """Return what is registered; read once, so that a later run continues the mirror."""
        if self._registered is None:
            from mlflow.exceptions import MlflowException

            try:
                run.client.create_registered_model(self.name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = run.client.search_model_versions(f"name = '{self.name}'", max_results=10_000)
            self._registered = {
                (entry.tags["draft_version"], entry.tags["checksum"]): str(entry.version)
                for entry in found
                if "draft_version" in entry.tags and "checksum" in entry.tags
            }
        return self._registered

    def _register(self, run: MlflowRun, draft: DraftVersion) -> str:
        """Log the version as a model, without a flavor, and add it to the registry."""
        if not Path(draft.path).is_dir():  # MLflow would log a model without files
            raise FileNotFoundError(f"{draft.path} is gone")
        client = run.client
        tags = _tags(draft)
        logged = client.create_logged_model(
            run.experiment_id,
            name=f"{self._label}-v{draft.version:06d}",
            source_run_id=run.run_id,
            tags=tags,
            params={key: tags[key] for key in _LOGGED_MODEL_PARAMS},
            model_type="drafter",
        )
        try:
            client.log_model_artifacts(logged.model_id, draft.path)
        except BaseException:
            client.finalize_logged_model(logged.model_id, "FAILED")
            raise
        client.finalize_logged_model(logged.model_id, "READY")
        self._log_figures(run, draft, logged.model_id)
        return str(
            client.create_model_version(
                self.name,
                source=f"models:/{logged.model_id}",
                run_id=run.run_id,
                tags={key: tags[key] for key in _REGISTRY_TAGS},
                description=describe(draft),
            ).version
        )

    def _log_figures(self, run: MlflowRun, draft: DraftVersion, model_id: str) -> None:
        self._log(run, draft, model_id, figures(draft))

    def _log(
        self, run: MlflowRun, draft: DraftVersion, model_id: str, values: Mapping[str, float]
    ) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        run.client.log_batch(
            run.run_id,
            metrics=[
                Metric(key, value, now, draft.global_step, model_id=model_id)
                for key, value in values.items()
            ],
        )


def live_figures(stats: ServingStats) -> dict[str, float]:
    """Return what a version did on live requests, as metrics."""
    values = {
        "live/num_requests": float(stats.num_requests),
        "live/acceptance_length": stats.acceptance_length,
        "live/otps": stats.otps,
    }
    for position, rate in enumerate(stats.acceptance_per_position, start=1):
        values[f"live/acceptance_at_{position}"] = rate
    for one in stats.by_batch_size:
        values[f"live/otps_at_batch_size_{one.batch_size}"] = one.otps.mean
    return values


def describe(draft: DraftVersion) -> str:
    """Return what the list of versions says about one, in a line.

    The registry counts over everything that was ever registered, so its number of a version may be
    another than Aurora's.
    """
    length = figures(draft).get("holdout/acceptance_length")
    scored = "not scored" if length is None else f"held-out acceptance length {length:.2f}"
    learned = f"{draft.speculator}, {draft.global_step} steps"
    return f"Draft version {draft.version}: {scored}; {learned}"


def figures(draft: DraftVersion) -> dict[str, float]:
    """Return the finite metrics of a version, held-out acceptance lengths included."""
    values = dict(draft.metrics)
    holdout = draft.holdout
    if holdout is not None and any(holdout.num_anchors):
        values["holdout/acceptance_length"] = holdout_acceptance_length(
            holdout.num_anchors, holdout.candidate_accepted
        )
        if holdout.live_accepted:
            values["holdout/live_acceptance_length"] = holdout_acceptance_length(
                holdout.num_anchors, holdout.live_accepted
            )
    return {key: float(value) for key, value in values.items() if math.isfinite(value)}


def _identity(draft: DraftVersion) -> tuple[str, str]:
    """A folder of versions that was deleted begins to count anew; its weights differ then."""
    return str(draft.version), draft.checksum


def _span(oldest: float, newest: float) -> str:
    """Return two times as one readable span, in UTC."""
    return " to ".join(
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)) for when in (oldest, newest)
    )


def _tags(draft: DraftVersion) -> dict[str, str]:
    return {
        "draft_version": str(draft.version),
        "parent": "" if draft.parent is None else str(draft.parent),
        "speculator": draft.speculator,
        "global_step": str(draft.global_step),
        "num_tokens_trained": str(draft.num_tokens_trained),
        "target_fingerprint": draft.target_fingerprint,
        "checksum": draft.checksum,
        "path": draft.path,
        "objective": draft.objective,
        "data_window": "" if draft.data_window is None else _span(*draft.data_window),
    }
