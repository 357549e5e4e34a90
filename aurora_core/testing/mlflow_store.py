"""An empty MLflow store in no time: creating its schema takes seconds, copying it does not."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path


def copy_empty_store(run_dir: Path) -> None:
    """Put an empty `mlflow.db` into a run directory; made once per process, then copied."""
    run_dir.mkdir(parents=True, exist_ok=True)
    shutil.copy(_empty_store(), run_dir / "mlflow.db")


@cache
def _empty_store() -> Path:
    from mlflow import MlflowClient

    # Kept until the process ends and its temporary directory object is collected.
    folder = _folder()
    path = Path(folder.name) / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="aurora-mlflow-")
