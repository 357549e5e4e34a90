"""From a plan to an engine: the target, the plugins, the drafter, the sink."""

from __future__ import annotations

from pathlib import Path

import torch

from aurora_backend_torch.config import TorchBackendOptions
from aurora_backend_torch.device import find_device
from aurora_backend_torch.earlier_traces import observe_earlier
from aurora_backend_torch.engine import Engine
from aurora_backend_torch.held_lineage import HeldLineage
from aurora_backend_torch.model import TargetModel
from aurora_backend_torch.residents import Residents
from aurora_core import kernels
from aurora_core.components import build_component
from aurora_core.config import ComponentSection
from aurora_core.interfaces import LineagePlan, ServePlan, TraceSink, TraceWriter
from aurora_core.plugins import Plugins
from aurora_core.target.weights import TargetWeights


def build_engine(plan: ServePlan, options: TorchBackendOptions) -> Engine:
    """Load the target, the plugins and the initial drafter; the thread is not started.

    Raises:
        AuroraError: the device, the target, a plugin, the sink or the initial version cannot be
            used.
    """
    num_threads = options.resolved_num_threads()
    torch.set_num_threads(num_threads)
    kernels.set_num_threads(num_threads)
    device = find_device(options.device)
    dtype = getattr(torch, options.dtype)
    weights = TargetWeights(plan.target)
    limit = plan.target.max_position_embeddings
    max_context = min(options.max_context or limit, limit)
    plugins = Plugins()
    plugins.load(plan.plugins)
    plans = {"": plan, **{one.rule.name: one for one in plan.lineages}}
    drafters = {
        name: _residents(one, plan, plugins, weights, options, dtype=dtype, device=device)
        for name, one in plans.items()
    }
    model = TargetModel(
        weights,
        dtype=dtype,
        device=device,
        max_context=max_context + max(one.num_speculative_tokens for one in plans.values()) + 2,
    )
    model.warm_up()
    lineages = {
        name: HeldLineage(
            residents=drafters[name],
            writer=_writer(one, plugins),
            needs=one.needs,
            num_speculative_tokens=one.num_speculative_tokens,
        )
        for name, one in plans.items()
    }
    return Engine(plan, options, model, lineages, max_context=max_context)


def _residents(
    lineage: ServePlan | LineagePlan,
    plan: ServePlan,
    plugins: Plugins,
    weights: TargetWeights,
    options: TorchBackendOptions,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Residents:
    """Return the drafters of one lineage, the initial one loaded and live."""
    speculator = build_component(
        plugins,
        "speculators",
        ComponentSection(name=lineage.speculator, **lineage.speculator_options),
        target=plan.target,
    )
    residents = Residents(
        speculator,
        weights,
        versions_dir=Path(lineage.versions_dir),
        capacity=options.num_resident_drafters,
        dtype=dtype,
        device=device,
    )
    if not speculator.trainable:
        residents.make_untrained()
    elif lineage.initial_version is not None:
        residents.load(lineage.initial_version.version, lineage.initial_version.checksum)
        residents.activate(lineage.initial_version.version, set())
    if lineage.observed_sink is not None and residents.learn_by_observing:
        observe_earlier(residents, _sink(plugins, lineage.observed_sink, lineage))
    return residents


def _writer(lineage: ServePlan | LineagePlan, plugins: Plugins) -> TraceWriter | None:
    if lineage.sink is None:
        return None
    return _sink(plugins, lineage.sink, lineage).open_writer()


def _sink(plugins: Plugins, name: str, lineage: ServePlan | LineagePlan) -> TraceSink:
    section = ComponentSection(name=name, **lineage.sink_options)
    return build_component(plugins, "trace_sinks", section)
