"""From a plan to an engine: the target, the plugins, the drafter, the sink."""

from __future__ import annotations

from pathlib import Path

import torch

from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.earlier_traces import observe_earlier
from aurora_backend_torch.engine import Engine
from aurora_backend_torch.model import TargetModel
from aurora_backend_torch.residents import Residents
from aurora_core import kernels
from aurora_core.components import build_component
from aurora_core.config import ComponentSection
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan, TraceSink
from aurora_core.plugins import Plugins
from aurora_core.target.weights import TargetWeights


def build_engine(plan: ServePlan, options: TorchBackendOptions) -> Engine:
    """Load the target, the plugins and the initial drafter; the thread is not started.

    Raises:
        AuroraError: the target, a plugin, the sink or the initial version cannot be used.
    """
    num_threads = options.resolved_num_threads()
    torch.set_num_threads(num_threads)
    kernels.set_num_threads(num_threads)
    device = _device(options.device)
    dtype = getattr(torch, options.dtype)
    weights = TargetWeights(plan.target)
    limit = plan.target.max_position_embeddings
    max_context = min(options.max_context or limit, limit)
    plugins = Plugins()
    plugins.load(plan.plugins)
    speculator = build_component(
        plugins,
        "speculators",
        ComponentSection(name=plan.speculator, **plan.speculator_options),
        target=plan.target,
    )
    residents = Residents(
        speculator,
        weights,
        versions_dir=Path(plan.versions_dir),
        capacity=options.num_resident_drafters,
        dtype=dtype,
        device=device,
    )
    if not speculator.trainable:
        residents.make_untrained()
    elif plan.initial_version is not None:
        residents.load(plan.initial_version.version, plan.initial_version.checksum)
        residents.activate(plan.initial_version.version, set())
    model = TargetModel(
        weights,
        dtype=dtype,
        device=device,
        max_context=max_context + plan.num_speculative_tokens + 2,
    )
    model.warm_up()
    if plan.observed_sink is not None and residents.learn_by_observing:
        observe_earlier(residents, _sink(plugins, plan.observed_sink, plan))
    writer = None if plan.sink is None else _sink(plugins, plan.sink, plan).open_writer()
    return Engine(plan, options, model, residents, writer, max_context=max_context)


def _sink(plugins: Plugins, name: str, plan: ServePlan) -> TraceSink:
    section = ComponentSection(name=name, **plan.sink_options)
    return build_component(plugins, "trace_sinks", section)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BackendError(
            f"backend.device is {name!r} and torch sees no GPU here; use `cpu` or `auto`"
        )
    return torch.device(name)
