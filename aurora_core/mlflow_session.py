"""One MLflow run and the background thread that makes every MLflow call of a process.

    event loop --submit()--> bounded queue --mlflow thread--> store in the run directory

MLflow calls take from milliseconds to seconds (the first one creates the store), so none is made
on the event loop. A call that fails is logged and counted; the run serves on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

CHARTS = """\
Step: requests in `serve/*`; optimizer steps in `holdout/*`, `live/*`, `train/*`, `reward/*`; \
version in `verdict/*`; swaps in `swap/*`.

* `acceptance_length`: tokens per verification step; `acceptance_at_2`: share of steps in which the
  second draft position was accepted
* `otps`: output tokens per second of a request; `_s`, `_ms`, `_mib`: seconds, milliseconds, MiB
"""
"""MLflow's charts name their axis `Step` and know no units. It shows the first line above them."""
_EXPERIMENT_TAGS = {
    # MLflow's pages for runs and models; without it an experiment opens with those for agents.
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.note.content": CHARTS,
}


@dataclass(frozen=True, slots=True)
class MlflowRun:
    """What a call is given, on the MLflow thread."""

    client: MlflowClient
    experiment_id: str
    run_id: str


Call = Callable[[MlflowRun], object]

_OPENING = threading.Lock()
"""Two sessions that create the same store at once would get in each other's way."""


class MlflowSession:
    """Opens a run in the background and makes calls in the order they were submitted."""

    def __init__(
        self,
        run_dir: Path,
        *,
        experiment: str = "aurora",
        uri: str | None = None,
        name: str = "",
        max_waiting: int = 5000,
    ) -> None:
        """Return at once; the store is opened on the thread.

        Args:
            run_dir: folder of the run; the store goes there unless `uri` names another.
            experiment: created if it does not exist.
            uri: MLflow tracking URI; None for `mlflow.db` and `mlartifacts/` in the run directory.
            name: added to the name of the MLflow run.
            max_waiting: calls that wait at most; metrics beyond it are dropped and counted.
        """
        self.run_id: str | None = None
        """Set once the run is open."""
        self.num_failed = 0
        """Calls that raised, the opening included."""
        self.num_dropped = 0
        """Calls refused because too many were waiting or the session had ended."""
        self._run_dir = run_dir.absolute()
        self._experiment, self._uri, self._max_waiting = experiment, uri, max_waiting
        self._name = name
        self._waiting: deque[tuple[str, Call]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._busy = True
        self._thread = threading.Thread(target=self._work, name="aurora-mlflow", daemon=True)
        self._thread.start()

    def submit(self, what: str, call: Call, *, droppable: bool = False) -> bool:
        """Queue a call; never blocks and never raises.

        Args:
            what: names the call in the log if it fails.
            call: runs on the MLflow thread.
            droppable: whether it may be refused when too many are waiting, as metrics may.

        Returns:
            Whether it was queued.
        """
        with self._changed:
            if self._closed or (droppable and len(self._waiting) >= self._max_waiting):
                self.num_dropped += 1
                return False
            self._waiting.append((what, call))
            self._changed.notify_all()
            return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything submitted so far was tried; False if time ran out. Blocks."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def close(self, status: RunStatus = "FINISHED", *, timeout_s: float = 60.0) -> bool:
        """Make the waiting calls, end the MLflow run and the thread. Blocks; callable twice.

        Returns:
            False if time ran out; the rest is lost then.
        """
        self.submit("end of the run", lambda run: run.client.set_terminated(run.run_id, status))
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("MLflow did not finish in %.0f s; the last metrics are lost", timeout_s)
            return False
        return True

    def _work(self) -> None:
        with _OPENING:
            run = self._attempt("opening the run", self._open)
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                what, call = self._waiting.popleft()
                self._busy = True
            if run is None:
                self.num_failed += 1  # the reason was logged when the run did not open
            else:
                self._attempt(what, lambda call=call: call(run))  # type: ignore[misc]

    def _attempt(self, what: str, call: Callable[[], MlflowRun | object]) -> MlflowRun | None:
        try:
            result = call()
        except Exception as error:  # whatever MLflow raises, serving goes on
            self.num_failed += 1
            logger.warning("MLflow: %s failed: %s", what, error)
            logger.debug("MLflow: %s failed", what, exc_info=True)
            return None
        return result if isinstance(result, MlflowRun) else None

    def _open(self) -> MlflowRun:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        import mlflow
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        uri = self._uri or f"sqlite:///{self._run_dir / 'mlflow.db'}"
        # "models:/..." sources resolve against the global URI, not the client's.
        mlflow.set_tracking_uri(uri)
        client = MlflowClient(uri)
        found = client.get_experiment_by_name(self._experiment)
        if found is not None:
            experiment_id = found.experiment_id
        else:
            local = (self._run_dir / "mlartifacts").as_uri() if self._uri is None else None
            try:
                experiment_id = client.create_experiment(
                    self._experiment, artifact_location=local, tags=_EXPERIMENT_TAGS
                )
            except MlflowException:
                # Another run created it in the meantime, on a shared server.
                found = client.get_experiment_by_name(self._experiment)
                if found is None:
                    raise
                experiment_id = found.experiment_id
        parts = (self._run_dir.name, self._name, time.strftime("%Y%m%d-%H%M%S"))
        name = "-".join(part for part in parts if part)
        self.run_id = client.create_run(experiment_id, run_name=name).info.run_id
        return MlflowRun(client, experiment_id, self.run_id)
