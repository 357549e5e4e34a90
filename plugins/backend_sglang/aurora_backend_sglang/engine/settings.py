"""What the controller tells the engine's half: a JSON file that an environment variable names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from aurora_core.errors import BackendError
from aurora_core.records import NO_DRAFTER, Needs, TargetSpec
from aurora_core.wire import first_fault, from_json, to_json

SETTINGS_VARIABLE = "AURORA_SGLANG_SETTINGS"
"""Environment variable with the path of the settings file; without it the plugin does nothing."""

TOKEN_VARIABLE = "AURORA_CONTROL_TOKEN"
"""Environment variable with the token of the control routes; without it anyone may call them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Everything the engine's half is told. Holds no secret."""

    target: TargetSpec
    needs: Needs
    versions_dir: str
    """The only folder that drafters are loaded from."""
    num_speculative_tokens: int
    drafter_dir: str
    """Checkpoint that the server was started with; every later one must have its tensors. Empty
    where SGLang drafts by itself."""
    algorithm: Literal["EAGLE3", "EAGLE", "NGRAM", "STANDALONE"] = "EAGLE3"
    """What drafts, in SGLang's word. All but the first are recorded, and never swapped."""
    initial_version: int = NO_DRAFTER
    """Version of that checkpoint; `NO_DRAFTER` for a placeholder."""
    initial_checksum: str = ""
    plugins: tuple[str, ...] | None = None
    """Plugins of the run, of which those installed here are loaded for the sink; None loads all."""
    sink: str | None = None
    """Registered name of the trace sink; None records nothing."""
    sink_options: Mapping[str, Any] = field(default_factory=dict)
    feature_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    drafts_chains: bool = True
    """One branch is drafted at a time: only then can SGLang decode without drafts as well."""
    requests_without_drafts: Literal["allow", "ignore", "refuse"] = "allow"
    """What becomes of a request that asks to be decoded without drafts."""
    max_trace_tokens: int = 4096
    """Longer requests leave no trace; bounds the memory that recording takes."""


def write_settings(settings: EngineSettings, path: Path) -> None:
    """Write the settings file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(settings), encoding="utf-8")


def find_settings() -> EngineSettings | None:
    """Return the settings of this process, None for a server that is not Aurora's.

    Raises:
        BackendError: the file is missing, or not from this version of Aurora.
    """
    name = os.environ.get(SETTINGS_VARIABLE)
    if not name:
        return None
    try:
        return from_json(EngineSettings, Path(name).read_bytes())
    except OSError as error:
        raise BackendError(
            f"cannot read {name!r}, which {SETTINGS_VARIABLE} names: {error.strerror}; start "
            "SGLang with the settings that Aurora wrote, or without the variable"
        ) from error
    except ValidationError as error:
        where, fault = first_fault(error)
        raise BackendError(
            f"{name!r} is not from this version of Aurora: {where or 'file'}: {fault}; "
            "install the same version beside SGLang as in the controller's environment"
        ) from error
