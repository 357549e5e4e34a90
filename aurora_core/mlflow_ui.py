"""Starting MLflow's web interface on the store of a run."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from aurora_core.errors import ConfigError


def is_installed() -> bool:
    """Return whether the full MLflow package is there; its small client has no web interface."""
    return all(importlib.util.find_spec(name) is not None for name in ("mlflow", "flask"))


def command(run_dir: Path, *, port: int) -> list[str]:
    """Return the command that serves the run's store on the loopback interface.

    Raises:
        ConfigError: the package is not installed, or the run has no store.
    """
    if not is_installed():
        raise ConfigError(
            "MLflow's web interface is not installed; install the extra `aurora-core[ui]`"
        )
    store = run_dir.absolute() / "mlflow.db"
    if not store.is_file():
        raise ConfigError(
            f"run directory {str(run_dir)!r} has no MLflow store (mlflow.db); give the directory "
            "of a run, as in `aurora ui --run-dir runs/quickstart`"
        )
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--backend-store-uri", f"sqlite:///{store}"),
        *("--default-artifact-root", str(store.with_name("mlartifacts"))),
        *("--host", "127.0.0.1", "--port", str(port)),
        # With several workers, a supervisor ends those that are slow to import on a busy machine.
        *("--workers", "1"),
    ]


def environment() -> dict[str, str]:
    """Return the variables to start it with."""
    return {
        "MLFLOW_DISABLE_TELEMETRY": "true",  # as a run does; the environment may say otherwise
        **os.environ,
        # Its job runners are seven more processes, and outlive it.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
