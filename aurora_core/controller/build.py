"""The composition root: from a configuration to the parts and plans of a run.

Nothing is started here. Whatever a user may have got wrong in the configuration is found here.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core.components import build_component, run_defaults
from aurora_core.controller.run_directory import RunDirectory, without_secrets
from aurora_core.controller.trials import can_route, can_shadow
from aurora_core.errors import CheckpointError, ConfigError
from aurora_core.interfaces import ServePlan
from aurora_core.learner.plan import LearnerPlan, write_plan
from aurora_core.negotiation import Agreement, negotiate
from aurora_core.policies.guard import Guard
from aurora_core.records import NO_DRAFTER, UNTRAINED
from aurora_core.target.progress import ReportProgress, silent
from aurora_core.target.pull import pull_target
from aurora_core.target.spec import read_target_spec
from aurora_core.versions import read_run_state

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.interfaces import Backend, Speculator, SwapPolicy, TraceSink
    from aurora_core.plugins import Plugins
    from aurora_core.records import DraftVersion, TargetSpec

LEARNER_MODULE = "aurora_core.learner"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything a run is made of; nothing of it is running."""

    config: RunConfig
    plugins: Plugins
    target: TargetSpec
    speculator: Speculator
    backend: Backend
    sink: TraceSink
    policy: SwapPolicy
    agreement: Agreement


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The drafters that an earlier run on the same directory left behind."""

    live: DraftVersion | None
    """Serves from the start."""
    previous: DraftVersion | None
    """Where a roll back goes."""
    challenger: DraftVersion | None
    """Waits to be judged."""
    newest_version: int
    """0 in a new directory, as the following."""
    num_steps: int
    """Optimizer steps behind the newest version."""
    num_tokens_trained: int
    pinned: bool = False
    """A person chose what is live."""
    switched_off: bool = False
    """A verdict switched speculation off."""


def build_parts(config: RunConfig, plugins: Plugins, *, progress: ReportProgress = silent) -> Parts:
    """Obtain the target, resolve and construct every component, and see that they fit together.

    Raises:
        AuroraError: the first thing that keeps the run from starting.
    """
    directory = pull_target(config.target, progress=progress)
    target = read_target_spec(directory, name=config.target)
    speculator = build_component(plugins, "speculators", config.speculator, target=target)
    backend = build_component(plugins, "backends", config.backend)
    agreement = negotiate(
        speculator,
        backend,
        speculator_name=config.speculator.name,
        backend_name=config.backend.name,
    )
    policy = build_component(plugins, "swap_policies", config.swap_policy)
    if policy.needs_routing and not can_route(backend):
        raise ConfigError(
            f"swap policy {config.swap_policy.name!r} sends a share of the requests to a version "
            f"on trial, which backend {config.backend.name!r} cannot; use swap_policy: gate"
        )
    if policy.needs_shadow and not can_shadow(backend):
        raise ConfigError(
            f"swap policy {config.swap_policy.name!r} has a version draft in the shadow, which "
            f"backend {config.backend.name!r} cannot; use swap_policy: gate"
        )
    sink_defaults = run_defaults(config, "trace_sinks")
    return Parts(
        config=config,
        plugins=plugins,
        target=target,
        speculator=speculator,
        backend=backend,
        sink=build_component(plugins, "trace_sinks", config.trace_sink, defaults=sink_defaults),
        policy=Guard(policy, config.guard),
        agreement=agreement,
    )


def prepare(parts: Parts, directory: RunDirectory) -> Lineage:
    """See that a run can use its directory and its trace sink; return what it continues from.

    Raises:
        AuroraError: it cannot.
    """
    directory.check_resumable(parts.target, parts.config.speculator.name)
    parts.sink.prepare()
    return read_lineage(directory)


def read_lineage(directory: RunDirectory) -> Lineage:
    """Find out from which versions a run on this directory continues.

    A live version that is damaged is left aside for the one before it: better an older drafter
    than no service. The weights of what will serve are compared with their checksum.

    Raises:
        CheckpointError: `state.json` cannot be read.
    """
    state = read_run_state(directory.state)
    live, previous = (_intact(directory, number) for number in (state.champion, state.previous))
    off_on_purpose = state.champion is None and (state.pinned or state.switched_off)
    if live is None and not off_on_purpose:
        live, previous = previous, None
    newest = directory.store.list()[-1:]
    return Lineage(
        live=live,
        previous=previous,
        challenger=_intact(directory, state.challenger) or _intact(directory, state.trial),
        newest_version=directory.store.next_version() - 1,
        num_steps=newest[0].global_step if newest else 0,
        num_tokens_trained=newest[0].num_tokens_trained if newest else 0,
        pinned=state.pinned and (off_on_purpose or live is not None),
        switched_off=state.switched_off and off_on_purpose,
    )


def plan_serving(
    parts: Parts,
    directory: RunDirectory,
    *,
    initial: DraftVersion | None,
    record: bool = True,
    run_dir: Path | None = None,
) -> ServePlan:
    """Return what the engine is told.

    Args:
        parts: the run's parts.
        directory: the run's directory.
        initial: version to serve from the start.
        record: whether the engine writes traces.
        run_dir: where the engine's logs go; None is the run's directory.
    """
    config = parts.config
    return ServePlan(
        target=parts.target,
        speculator=config.speculator.name,
        speculator_options=parts.speculator.options.model_dump(mode="json"),
        plugins=config.plugins,
        needs=parts.speculator.needs,
        num_speculative_tokens=config.num_speculative_tokens,
        versions_dir=str(directory.versions),
        initial_version=initial,
        sink=config.trace_sink.name if record else None,
        sink_options=parts.sink.options.model_dump(mode="json"),
        run_dir=str(run_dir or directory.path),
        seed=config.seed,
    )


def plan_learning(parts: Parts, directory: RunDirectory, lineage: Lineage) -> LearnerPlan:
    """Return what the learner is told."""
    config = parts.config
    return LearnerPlan(
        target=parts.target,
        speculator=config.speculator.name,
        speculator_options=parts.speculator.options.model_dump(mode="json"),
        plugins=config.plugins,
        sink=config.trace_sink.name,
        sink_options=parts.sink.options.model_dump(mode="json"),
        versions_dir=str(directory.versions),
        learner_dir=str(directory.learner),
        initial_version=lineage.live,
        num_speculative_tokens=config.num_speculative_tokens,
        learner=config.learner,
        seed=config.seed,
    )


def learner_command(
    plan: LearnerPlan, directory: RunDirectory, *, module: str = LEARNER_MODULE
) -> list[str]:
    """Write the plan and return the command that learns by it.

    Raises:
        ConfigError: the run directory cannot be written.
    """
    path = Path(directory.learner / "plan.json")
    with directory.writable():
        directory.learner.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_plan(plan, path)
    return [sys.executable, "-m", module, str(path)]


def learner_environment(num_threads: int) -> dict[str, str]:
    """Return the variables that keep the learner to its share of the machine."""
    names = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "NUMBA")
    return {
        **{f"{name}_NUM_THREADS": str(num_threads) for name in names},
        # Threads that spin between two kernels take the engine's cores away: 10 to 20 times slower.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }


def tracking_uri(config: RunConfig) -> str | None:
    """Return where MLflow's store is, without secrets; None when nothing is tracked."""
    section = config.tracking
    if not section.enabled:
        return None
    uri = section.uri or f"sqlite:///{config.run_dir.absolute() / 'mlflow.db'}"
    return str(without_secrets(uri))


def plugin_labels(plugins: Plugins) -> dict[str, str]:
    """Return plugin name -> distribution and version, of every plugin that is loaded."""
    return {
        name: f"{plugin.distribution} {plugin.version}"
        for name, plugin in plugins.loaded.items()
        if plugin.distribution
    }


def version_at_start(parts: Parts, lineage: Lineage) -> int:
    """Return the draft version that serves from the start, `NO_DRAFTER` for none."""
    return number_of(lineage.live) if parts.speculator.trainable else UNTRAINED


def number_of(draft: DraftVersion | None) -> int:
    """Return a version's number, `NO_DRAFTER` for none."""
    return NO_DRAFTER if draft is None else draft.version


def _intact(directory: RunDirectory, number: int | None) -> DraftVersion | None:
    if number is None:
        return None
    try:
        return directory.store.verify(number)
    except CheckpointError as error:
        log.warning("left aside: %s", error)
        return None
