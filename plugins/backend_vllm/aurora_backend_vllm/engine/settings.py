"""What the controller tells the engine's half: `--additional-config '{"aurora": {...}}'`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from aurora_core.errors import BackendError
from aurora_core.records import NO_DRAFTER, Needs, TargetSpec
from aurora_core.wire import first_fault, from_dict, to_dict

KEY = "aurora"
"""Name of the section in vLLM's `additional_config`."""

TOKEN_VARIABLE = "AURORA_CONTROL_TOKEN"
"""Environment variable with the token of the control routes; without it they refuse everything."""

StaleDraftCache = Literal["salt", "reprefill", "keep"]
"""What becomes of the drafter's rows in the cache that an older version wrote.

    salt       every version has prefixes of its own; running requests keep their old rows
    reprefill  running requests are prefilled again with the new drafter, in one pause
    keep       nothing; new requests may draft from prefixes of an older drafter
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Everything the engine's half is told. Holds no secret: it stands on a command line."""

    target: TargetSpec
    needs: Needs
    versions_dir: str
    """The only folder that drafters are loaded from."""
    initial_version: int = NO_DRAFTER
    """Version of the drafter that the server was started with; `NO_DRAFTER` for a placeholder,
    which is never drafted with."""
    initial_checksum: str = ""
    sink: str | None = None
    """Registered name of the trace sink; None records nothing."""
    sink_options: Mapping[str, Any] = field(default_factory=dict)
    feature_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    max_trace_tokens: int = 4096
    """Longer requests leave no trace; bounds the memory that recording takes."""
    stale_draft_cache: StaleDraftCache = "salt"

    def to_config(self) -> dict[str, Any]:
        """Return the value for vLLM's `additional_config`."""
        return {KEY: to_dict(self)}


def read_settings(additional_config: Mapping[str, Any] | None) -> EngineSettings:
    """Read what `to_config` wrote.

    Raises:
        BackendError: the section is missing, or not from this version of Aurora.
    """
    section = (additional_config or {}).get(KEY)
    if section is None:
        raise BackendError(
            f"vLLM was started with Aurora's worker but without its settings; add the section "
            f"{KEY!r} to --additional-config, as `aurora vllm-command` prints it"
        )
    try:
        return from_dict(EngineSettings, section)
    except ValidationError as error:
        where, fault = first_fault(error)
        raise BackendError(
            f"the section {KEY!r} of vLLM's --additional-config is not from this version of "
            f"Aurora: {where}: {fault}"
        ) from error
