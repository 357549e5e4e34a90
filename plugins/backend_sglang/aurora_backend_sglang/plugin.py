"""Registers the SGLang backend."""

from __future__ import annotations

from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_backends() -> list[Registration]:
    """Name the backend; the class is imported when a config selects it."""
    return [
        Registration(
            "sglang",
            "aurora_backend_sglang.backend:SglangBackend",
            "stock SGLang 0.5.23 in an environment of its own, launched or attached; CPU or GPU",
        )
    ]
