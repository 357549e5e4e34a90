"""Registers the vLLM backend, its command and its lines of `aurora doctor`."""

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
            "vllm",
            "aurora_backend_vllm.backend:VllmBackend",
            "stock vLLM 0.32 in an environment of its own, launched or attached; CPU or GPU",
        )
    ]


@hookimpl
def aurora_register_commands(app: typer.Typer) -> None:
    """Add `aurora vllm-command`."""
    from aurora_backend_vllm.vllm_command import vllm_command

    app.command("vllm-command")(vllm_command)


@hookimpl
def aurora_examine_environment(findings: list[Finding]) -> None:
    """Look at the environment that `make vllm-env` makes."""
    from aurora_backend_vllm.config import VllmBackendOptions
    from aurora_backend_vllm.environment import examine
    from aurora_core.doctor import Finding
    from aurora_core.errors import BackendError

    try:
        found = examine(VllmBackendOptions().python.absolute())
    except BackendError as error:
        findings.append(Finding(subject="vllm", state="limited", detail=str(error)))
        return
    detail = f"{found.distribution} {found.version}, Python {found.python_version}, {found.python}"
    findings.append(Finding(subject="vllm", state="ok", detail=detail))
