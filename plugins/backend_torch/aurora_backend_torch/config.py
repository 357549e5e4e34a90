"""Options of the embedded engine: the `backend:` section with `name: torch`."""

from __future__ import annotations

import os
import re
from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from aurora_core.interfaces import Options

_CPU_VERIFICATION_ROWS = 8
"""Up to about here the memory's speed sets the time of a pass, and further rows are nearly free."""


class TorchBackendOptions(Options):
    """How the embedded engine serves; the target and the drafter are configured elsewhere."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback is open to whoever reaches the machine."""
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port."""
    served_name: str | None = None
    """Model name in the API; the target's name if not set."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:<index>`; auto takes a GPU if there is one."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    num_threads: int | None = Field(default=None, ge=1)
    """CPU threads of the engine; half of the machine's if not set, which leaves room to learn."""

    max_running_requests: int = Field(default=8, ge=1)
    """Requests decoded together."""
    max_waiting_requests: int = Field(default=64, ge=0)
    """Requests that may queue; more are refused with 429."""
    max_verification_rows: int | None = Field(default=None, ge=1)
    """Rows of one pass that verifies all running requests: the more requests, the shorter their
    drafts, down to none. 8 on a CPU if not set, where more rows cost more than drafts bring;
    without limit elsewhere."""
    max_draft_nodes: int = Field(default=60, ge=1)
    """Draft tokens of one request in one step, over all branches of a tree; a chain has at most
    `num_speculative_tokens`."""
    draft_patience: int = Field(default=10, ge=0)
    """Steps in a row of one request without an accepted draft, after which it is drafted for less
    often: after pauses of 1, 2, 4, 8 and then 16 steps each, until a draft is accepted. 0 drafts in
    every step."""
    sample_drafts: bool = False
    """Whether a request with a temperature gets drafts that are sampled as well, verified by
    rejection sampling. The output keeps the target's distribution, but with the same seed another
    drafter gives another text; off, it is the same text with any drafter or none."""
    max_context: int | None = Field(default=None, ge=2)
    """Prompt and output tokens per request; the target's own limit if not set."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    """Size limit of a request body."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds from arrival after which a request is ended with 504."""

    num_resident_drafters: int = Field(default=4, ge=1)
    """Drafters of one lineage that may be loaded side by side, the live one included."""

    start_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds the controller waits for the engine to answer."""
    stop_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds the engine has to stop by itself before it is terminated."""

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, name: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
            raise ValueError(
                f"there is no device {name!r}; choose `auto`, `cpu`, `cuda` or `cuda:<index>`"
            )
        return name

    def resolved_verification_rows(self, device_type: str) -> int | None:
        """Return the limit on verification rows that holds on a kind of device."""
        if self.max_verification_rows is None and device_type == "cpu":
            return _CPU_VERIFICATION_ROWS
        return self.max_verification_rows

    def resolved_num_threads(self) -> int:
        """Return the thread count to use on this machine."""
        return self.num_threads or max(1, len(os.sched_getaffinity(0)) // 2)
