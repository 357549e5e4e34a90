"""Registers the vLLM backend."""

from __future__ import annotations

from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_backends() -> list[Registration]:
    """Name the backend; the class is imported when a config selects it."""
    return [
        Registration(
            "vllm",
            "aurora_backend_vllm.backend:VllmBackend",
            "stock vLLM 0.32 in an environment of its own, launched or attached; CPU or GPU",
        )
    ]
