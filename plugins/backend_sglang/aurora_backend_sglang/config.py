"""Options of the SGLang backend: the `backend:` section with `name: sglang`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, SecretStr, model_validator

from aurora_core.interfaces import Options


class SglangBackendOptions(Options):
    """How SGLang is launched, or which running server is attached to."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    python: Path = Path(".venv-sglang/bin/python")
    """Interpreter of the environment that holds SGLang; `make sglang-env` makes the default one."""
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback is open to whoever reaches the machine."""
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port."""
    url: str | None = None
    """Base URL of a running server to attach to; nothing is launched then. The server must have
    been started as `aurora sglang-command` prints it."""
    token: SecretStr | None = None
    """Token of the attached server's control routes: its `AURORA_CONTROL_TOKEN`."""

    device: Literal["cuda", "cpu"] = "cuda"
    """On `cpu`, SGLang verifies drafts greedily whatever temperature a request asks for."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """Of the target's and the drafter's weights and of the cache."""
    eagle_topk: int = Field(default=1, ge=1)
    """Branches per draft step; 1 drafts a chain, more draft a tree."""
    max_draft_nodes: int | None = Field(default=None, ge=1)
    """Draft tokens of one step over all branches of a tree; `num_speculative_tokens` times
    `eagle_topk` if not set. A chain has `num_speculative_tokens`."""
    max_running_requests: int = Field(default=64, ge=1)
    """Requests decoded together."""
    max_total_tokens: int | None = Field(default=None, ge=16)
    """Tokens that the cache holds, over all requests; SGLang's own choice if not set."""
    max_context: int | None = Field(default=None, ge=64)
    """Prompt and output tokens per request; the target's own limit if not set."""
    num_threads: int | None = Field(default=None, ge=1)
    """CPU threads of the engine; half of the machine's on a CPU if not set."""
    arguments: tuple[str, ...] = ()
    """Further arguments of SGLang's server, as on its own command line."""
    environment: dict[str, str] = Field(default={})
    """Further environment variables of the server."""

    prefix_cache: bool = True
    """Whether prompts that begin alike share their rows. What comes from the cache is missing in
    the trace, and was written by the drafter of its time."""
    pause: Literal["in_place", "retract"] = "in_place"
    """What a swap does to running requests: `in_place` lets them wait where they are; `retract`
    reads them again with the new drafter, and empties the prefix cache. The first version after
    none always does the latter."""
    verify_target: Literal["while_serving", "between_steps", "never"] | None = None
    """How every swap is followed by a comparison of all of the target's weights with what they were
    at the start: `while_serving` in a thread of the engine, while it decodes; `between_steps` by
    SGLang's own check, for which decoding stands still; `never` not at all. If not set, the first
    on a CPU, where it takes seconds, and the second on a GPU or with several ranks."""

    requests_without_drafts: Literal["allow", "ignore", "refuse"] = "allow"
    """What becomes of a request that asks for no drafts. It takes those beside it along, so any
    client can slow down others: `ignore` drafts for it all the same, `refuse` answers 400. Nothing
    is compared with decoding without drafts then: no `traffic.lossless_every`, no `final_bench`,
    no `aurora bench`."""

    record: bool = True
    """Whether traces are written; false serves and measures only."""
    feature_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Storage type of hidden states in traces."""
    max_trace_tokens: int = Field(default=4096, ge=16)
    """Longer requests leave no trace; bounds the memory that recording takes."""

    max_restarts: int = Field(default=3, ge=0)
    """Starts in a row after a crash before the engine is given up."""
    start_timeout_s: float = Field(default=900.0, gt=0)
    """Seconds the controller waits for the engine to answer."""
    stop_timeout_s: float = Field(default=20.0, gt=0)
    """Seconds the engine has to stop by itself before it is killed."""
    control_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds for an answer to a control call; the engine answers between two of its steps."""

    @model_validator(mode="after")
    def _attach_needs_a_token(self) -> Self:
        if self.url is not None and self.token is None:
            raise ValueError("`url` needs `token`, the AURORA_CONTROL_TOKEN of that server")
        return self

    def num_draft_nodes(self, num_speculative_tokens: int) -> int:
        """Return how many draft tokens one step verifies."""
        if self.eagle_topk == 1:
            return num_speculative_tokens
        return self.max_draft_nodes or num_speculative_tokens * self.eagle_topk
