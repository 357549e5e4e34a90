"""What a server of a run is started with: a drafter, and the settings of the engine's half."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aurora_backend_sglang.config import SglangBackendOptions
from aurora_backend_sglang.engine.settings import write_settings
from aurora_backend_sglang.other_drafters import algorithm_of
from aurora_backend_sglang.server_command import engine_settings
from aurora_backend_sglang.start_drafter import prepare_drafter
from aurora_core.engine_process.placeholder import make_placeholder
from aurora_core.interfaces import ServePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFiles:
    """Where they lie."""

    drafter: Path | None
    """Folder of the checkpoint, in SGLang's convention; None where SGLang drafts by itself."""
    settings: Path


async def write_start_files(plan: ServePlan, options: SglangBackendOptions) -> StartFiles:
    """Write them into `engine` of the run directory; without a version, make a placeholder.

    Args:
        plan: of the run.
        options: of the backend.

    Raises:
        BackendError: a placeholder cannot be made.
        CheckpointError: the version is none that SGLang serves.
    """
    folder = Path(plan.run_dir).absolute() / "engine"
    drafter = None
    if algorithm_of(options.arguments) == "EAGLE3":
        if plan.initial_version is not None:
            checkpoint = Path(plan.initial_version.path)
        else:
            checkpoint = await make_placeholder(plan, folder / "placeholder")
        drafter = prepare_drafter(checkpoint, folder / "drafter", plan)
    settings = folder / "settings.json"
    write_settings(engine_settings(plan, options, drafter=drafter), settings)
    return StartFiles(drafter=drafter, settings=settings)
