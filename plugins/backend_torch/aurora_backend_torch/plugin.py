"""Registers the embedded engine."""

from __future__ import annotations

from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_backends() -> list[Registration]:
    """Name the backend; the class is imported when a config selects it."""
    return [
        Registration(
            "torch",
            "aurora_backend_torch.backend:TorchBackend",
            "embedded engine: one torch process with an OpenAI-compatible API, CPU or one GPU",
        )
    ]
