"""Drafter versions in the MLflow model registry: files, figures, parents and aliases.

    champion    the live version            previous    where a roll back goes
    challenger  the newest version that is neither

A mirror: the version folders and `state.json` decide, so a registry that fails changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core.records import DraftVersion, ServingStats, Verdict
from aurora_core.version_figures import describe, figures, live_figures, parameters

if TYPE_CHECKING:
    from aurora_core.mlflow_session import MlflowRun, MlflowSession

_MAX_TEXT_LENGTH = 4000
_REGISTERED_MODEL = """\
Versions of one drafter, as `aurora versions` lists them: `draft_version` is Aurora's number.

* `champion` is live, `previous` is where a roll back goes, `challenger` is the newest one that has
  not gone live. Moving an alias here changes nothing: `aurora promote` and `aurora rollback` do.
* To compare versions, tick some and choose Compare: each has a run of its own with its parameters
  and figures. Charts of them are under Models of the experiment.
"""


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
        run.client.set_model_version_tag(self.name, number, "verdict", verdict.action)
        text = f"{describe(draft)}\n\n{verdict.action}: {verdict.reason}"[:_MAX_TEXT_LENGTH]
        entry = run.client.update_model_version(self.name, number, description=text)
        run.client.set_tag(str(entry.run_id), "mlflow.note.content", text)

    def _serve(self, run: MlflowRun, draft: DraftVersion, stats: ServingStats) -> None:
        number = self._ensure_registered(run, draft)
        entry = run.client.get_model_version(self.name, number)
        model_id = str(entry.source).removeprefix("models:/")
        self._log(run, draft, (model_id, str(entry.run_id)), live_figures(stats))

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
                run.client.create_registered_model(self.name, description=_REGISTERED_MODEL)
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
        from mlflow.entities import LoggedModelOutput

        if not Path(draft.path).is_dir():  # MLflow would log a model without files
            raise FileNotFoundError(f"{draft.path} is gone")
        client = run.client
        name = f"{self._label}-v{draft.version:06d}"
        logged = client.create_logged_model(
            run.experiment_id,
            name=name,
            source_run_id=run.run_id,
            tags={"checksum": draft.checksum, "path": draft.path},
            params=parameters(draft),
            model_type="drafter",
        )
        try:
            client.log_model_artifacts(logged.model_id, draft.path)
        except BaseException:
            client.finalize_logged_model(logged.model_id, "FAILED")
            raise
        client.finalize_logged_model(logged.model_id, "READY")
        client.log_outputs(run.run_id, [LoggedModelOutput(logged.model_id, draft.global_step)])
        own_run_id = _create_own_run(run, draft, name)
        self._log(run, draft, (logged.model_id, own_run_id), figures(draft))
        return str(
            client.create_model_version(
                self.name,
                source=f"models:/{logged.model_id}",
                run_id=own_run_id,
                tags={
                    "draft_version": str(draft.version),
                    "parent": "" if draft.parent is None else str(draft.parent),
                    "checksum": draft.checksum,
                },
                description=describe(draft),
            ).version
        )

    def _log(
        self,
        run: MlflowRun,
        draft: DraftVersion,
        version_ids: tuple[str, str],
        values: Mapping[str, float],
    ) -> None:
        """Log figures where they are looked for: on the run's curves, the model, its own run."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        model_id, own_run_id = version_ids
        for run_id, model in ((run.run_id, model_id), (own_run_id, None)):
            run.client.log_batch(
                run_id,
                metrics=[
                    Metric(key, value, now, draft.global_step, model_id=model)
                    for key, value in values.items()
                ],
            )


def _create_own_run(run: MlflowRun, draft: DraftVersion, name: str) -> str:
    """Create the run of a version, below the one that made it, and return its id.

    The registry's page that compares versions shows the parameters and metrics of their runs: with
    one run for all of them it would call any two versions identical.
    """
    from mlflow.entities import Param

    created = int(draft.created * 1000)
    own = run.client.create_run(
        run.experiment_id,
        start_time=created,
        run_name=name,
        tags={"mlflow.parentRunId": run.run_id, "mlflow.note.content": describe(draft)},
    )
    params = [Param(*item) for item in parameters(draft).items()]
    run.client.log_batch(own.info.run_id, params=params)
    run.client.set_terminated(own.info.run_id, end_time=created)
    return str(own.info.run_id)


def _identity(draft: DraftVersion) -> tuple[str, str]:
    """A folder of versions that was deleted begins to count anew; its weights differ then."""
    return str(draft.version), draft.checksum
