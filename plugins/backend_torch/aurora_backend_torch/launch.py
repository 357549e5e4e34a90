"""What the controller tells a new engine process, and what the process says back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from aurora_backend_torch.config import TorchBackendOptions
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from aurora_core.wire import first_fault, from_json, to_json

TOKEN_VARIABLE = "AURORA_CONTROL_TOKEN"
"""Environment variable with the control token; without it every control route answers 401."""

USER_ERROR = 2
"""Exit status after a mistake that the user can mend; the last line on stderr is the sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """Content of the plan file."""

    plan: ServePlan
    options: TorchBackendOptions


def write_launch(launch: EngineLaunch, path: Path) -> None:
    """Write the plan file; it holds no secret."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(launch), encoding="utf-8")


def read_launch(path: Path) -> EngineLaunch:
    """Read the plan file.

    Raises:
        BackendError: it is missing or not a plan.
    """
    try:
        return from_json(EngineLaunch, path.read_bytes())
    except OSError as error:
        raise BackendError(
            f"cannot read the engine's plan {str(path)!r}: {error.strerror}"
        ) from error
    except ValidationError as error:
        where, fault = first_fault(error)
        raise BackendError(
            f"{str(path)!r} is not an engine's plan: {where or 'file'}: {fault}"
        ) from error


def event_line(event: str, **fields: str) -> str:
    """Return one line of the engine's stdout."""
    return json.dumps({"event": event, **fields}) + "\n"
