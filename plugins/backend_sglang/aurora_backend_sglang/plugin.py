"""Registers the SGLang backend, `aurora sglang-command` and a line of `aurora doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aurora_core import hookimpl
from aurora_core.records import Registration

if TYPE_CHECKING:
    import typer

    from aurora_core.doctor import Finding


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


@hookimpl
def aurora_register_commands(app: typer.Typer) -> None:
    """Add `aurora sglang-command`."""
    from aurora_backend_sglang.sglang_command import sglang_command

    app.command("sglang-command")(sglang_command)


@hookimpl
def aurora_examine_environment(findings: list[Finding]) -> None:
    """Look at the environment that `make sglang-env` makes."""
    from aurora_backend_sglang.config import SglangBackendOptions
    from aurora_backend_sglang.environment import SUPPORTED, examine
    from aurora_core.doctor import Finding
    from aurora_core.errors import BackendError

    python = SglangBackendOptions().python.absolute()
    try:
        examine(python)
    except BackendError as error:
        findings.append(Finding(subject="sglang", state="limited", detail=str(error)))
        return
    findings.append(Finding(subject="sglang", state="ok", detail=f"{SUPPORTED}, {python}"))
