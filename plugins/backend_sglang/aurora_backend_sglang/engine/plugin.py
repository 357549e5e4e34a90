"""What SGLang calls in each of its processes before it starts to work."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Container, Iterable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from aurora_backend_sglang.engine.settings import EngineSettings, find_settings
from aurora_core.records import VerificationRule

if TYPE_CHECKING:
    from aurora_backend_sglang.engine.recorder import Recorder
    from aurora_core.interfaces import TraceWriter


def activate() -> None:
    """Register the hooks; does nothing in a server that was not started by Aurora.

    Raises:
        BackendError: the settings cannot be read. SGLang logs it and goes on without Aurora, which
            the controller notices.
    """
    settings = find_settings()
    if settings is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from aurora_backend_sglang.engine.hooks import EngineHalf
    from aurora_backend_sglang.engine.other_drafts import OtherDraftsHalf
    from aurora_backend_sglang.engine.server_hooks import ServerHalf

    engine_half = EngineHalf if settings.algorithm == "EAGLE3" else OtherDraftsHalf
    halves: list[EngineHalf | ServerHalf] = [engine_half(settings, start_recorder)]
    if multiprocessing.parent_process() is None:
        halves.append(ServerHalf(settings))
    for half in halves:
        table = half.table()
        half.missing = functools.partial(_left_out, table, HookRegistry._patched)
        for target, (hook, kind) in table.items():
            HookRegistry.register(target, hook, HookType(kind))


def _left_out(table: Iterable[str], patched: Container[str]) -> list[str]:
    return [target for target in table if target not in patched]


def start_recorder(settings: EngineSettings) -> Recorder | None:
    """Open the sink and return the recorder of this scheduler; None for all ranks but one.

    All ranks of a tensor-parallel group see the same tokens.

    Raises:
        AuroraError: the sink cannot be opened; the scheduler ends with it.
    """
    from sglang.srt.runtime_context import get_parallel

    from aurora_backend_sglang.engine.recorder import Recorder

    if get_parallel().tp_rank:
        return None
    return Recorder(settings, open_writer(settings), rule=verification_rule())


def open_writer(settings: EngineSettings) -> TraceWriter | None:
    """Open the engine's end of the sink; None if nothing is recorded."""
    if settings.sink is None:
        return None
    from aurora_core.components import build_component
    from aurora_core.config import ComponentSection
    from aurora_core.plugins import Plugins

    plugins = Plugins()
    plugins.load(installed_among(settings.plugins))
    section = ComponentSection.model_validate({"name": settings.sink, **settings.sink_options})
    return build_component(plugins, "trace_sinks", section).open_writer()


def installed_among(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the plugins of a run that are installed here, where only its sink is needed."""
    if names is None:
        return None
    here = {found.name for found in entry_points(group="aurora_core.plugins")}
    return tuple(name for name in names if name in here)


def verification_rule() -> VerificationRule:
    """Return how this SGLang verifies the drafts of requests that sample."""
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative import eagle_utils

    rejects = bool(get_spec().speculative_use_rejection_sampling)
    if eagle_utils._verify_uses_greedy(
        is_all_greedy=False,
        is_cpu=eagle_utils._is_cpu,
        is_hip=eagle_utils._is_hip,
        is_xpu=eagle_utils._is_xpu,
        use_rejection_sampling=rejects,
    ):
        return "greedy_always"
    return "rejection" if rejects else "point_mass"
