"""Options of the vLLM backend: the `backend:` section with `name: vllm`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

from aurora_core.interfaces import Options


class VllmBackendOptions(Options):
    """How vLLM is launched, or which running server is attached to."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    python: Path = Path(".venv-vllm/bin/python")
    """Interpreter of the environment that holds vLLM; `make vllm-env` makes the default one."""
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback is open to whoever reaches the machine."""
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port."""
    url: str | None = None
    """Base URL of a running server to attach to; nothing is launched then. The server must have
    been started as `aurora vllm-command` prints it."""
    token: SecretStr | None = None
    """Token of the attached server's control routes: its `AURORA_CONTROL_TOKEN`."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    max_context: int | None = Field(default=None, ge=64)
    """Prompt and output tokens per request; the target's own limit if not set."""
    max_running_requests: int = Field(default=64, ge=1)
    """Requests decoded together."""
    enforce_eager: bool = True
    """Whether vLLM runs without compiling. Set it to false on a GPU."""
    num_speculative_tokens_by_batch_size: dict[int, int] = Field(default_factory=dict)
    """From so many requests decoded together on, at most so many draft tokens for each, as in
    `{4: 2, 8: 0}`: the more a step decodes, the more it pays for every token that it verifies."""
    num_threads: int | None = Field(default=None, ge=1)
    """CPU threads of the engine on a machine without GPU; vLLM takes all cores if not set."""
    kv_cache_gib: int = Field(default=1, ge=1)
    """GiB of the cache on a machine without GPU."""
    arguments: tuple[str, ...] = ()
    """Further arguments of vLLM's server, as on its own command line."""

    record: bool = True
    """Whether traces are written; false serves and measures only."""
    feature_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Storage type of hidden states in traces."""
    max_trace_tokens: int = Field(default=4096, ge=16)
    """Longer requests leave no trace; bounds the memory that recording takes."""
    stale_draft_cache: Literal["salt", "reprefill", "keep"] = "salt"
    """What becomes of cached rows that an older drafter wrote: `salt` gives each version prefixes
    of its own, `reprefill` also reads running requests again, in one pause, `keep` does nothing.
    docs/guides/vllm.md has what each costs."""

    max_restarts: int = Field(default=3, ge=0)
    """Starts in a row after a crash before the engine is given up."""
    start_timeout_s: float = Field(default=900.0, gt=0)
    """Seconds the controller waits for the engine to answer."""
    stop_timeout_s: float = Field(default=20.0, gt=0)
    """Seconds the engine has to stop by itself before it is killed."""
    control_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds for an answer to a control call; the engine answers between two of its steps."""

    @field_validator("num_speculative_tokens_by_batch_size")
    @classmethod
    def _are_batch_sizes_and_drafts(cls, limits: dict[int, int]) -> dict[int, int]:
        for batch_size, limit in limits.items():
            if batch_size < 2 or limit < 0:
                raise ValueError(
                    f"{{{batch_size}: {limit}}} is no limit: it takes batch sizes from 2 on, and 0 "
                    "draft tokens or more; `num_speculative_tokens` is for a single request"
                )
        return limits

    @model_validator(mode="after")
    def _attach_needs_a_token(self) -> Self:
        if self.url is not None and self.token is None:
            raise ValueError("`url` needs `token`, the AURORA_CONTROL_TOKEN of that server")
        return self
