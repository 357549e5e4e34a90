"""Options of the SGLang backend: the `backend:` section with `name: sglang`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from aurora_core.interfaces import Options


class SglangBackendOptions(Options):
    """How SGLang is started or reached; the target and the drafter are configured elsewhere."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    python: str | None = None
    """Interpreter of the environment in which SGLang and this plugin are installed, to launch the
    server; either this or `url`."""
    url: str | None = None
    """Base URL of a running server that was started with this run's settings, to attach to it."""
    admin_key: str | None = None
    """SGLang's `--admin-api-key` of a running server; a launched one is given a key of its own."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback is open to whoever reaches the machine."""
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port."""
    served_name: str | None = None
    """Model name in the API; the target's name if not set."""

    device: Literal["cuda", "cpu"] = "cuda"
    """On `cpu`, SGLang verifies drafts greedily whatever temperature a request asks for."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    eagle_topk: int = Field(default=1, ge=1)
    """Branches per draft step; 1 drafts a chain, more draft a tree."""
    max_draft_nodes: int | None = Field(default=None, ge=1)
    """Draft tokens of one step; all of a chain if not set, and for a tree `num_speculative_tokens`
    times `eagle_topk`."""
    max_running_requests: int = Field(default=8, ge=1)
    """Requests decoded together."""
    max_total_tokens: int | None = Field(default=None, ge=16)
    """Tokens that the cache holds, over all requests; SGLang's own choice if not set."""
    max_context: int | None = Field(default=None, ge=2)
    """Prompt and output tokens per request; the target's own limit if not set."""
    arguments: tuple[str, ...] = ()
    """Further arguments of SGLang's command line, such as `["--tp-size", "2"]`."""
    environment: dict[str, str] = {}
    """Further environment variables of the server."""

    prefix_cache: bool = True
    """Whether prompts that begin alike share their rows. What comes from the cache is missing in
    the trace, and was written by the drafter of that time."""
    pause: Literal["in_place", "retract"] = "in_place"
    """What a swap does to running requests: they wait where they are, or they are read again with
    the new drafter, which also empties the prefix cache."""

    feature_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Storage type of hidden states in traces."""
    max_trace_tokens: int = Field(default=4096, ge=16)
    """Longer requests leave no trace; bounds the memory that recording takes."""

    start_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds the controller waits for the engine to answer."""
    stop_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds the engine has to stop by itself before it is killed."""
    swap_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds the controller waits for one step of a swap."""
    max_restarts: int = Field(default=3, ge=0)
    """Starts in a row after crashes of a launched server before the run gives up."""

    @model_validator(mode="after")
    def _launched_or_attached(self) -> Self:
        if (self.python is None) == (self.url is None):
            raise ValueError(
                "set either `python`, the interpreter beside which SGLang is installed, or `url`, "
                "the address of a running server"
            )
        return self

    def num_draft_nodes(self, num_speculative_tokens: int) -> int:
        """Return how many draft tokens one step verifies."""
        if self.eagle_topk == 1:
            return num_speculative_tokens
        return self.max_draft_nodes or num_speculative_tokens * self.eagle_topk
