"""The learner process: puts the parts together and runs Lightning until told to stop.

    thread "stdin"   commands and end of file ---> Control <--- signals
    main thread      Trainer.fit: TraceStream -> LearnerModule -> callbacks
                     callbacks: report (stdout), publish (versions), checkpoint (learner folder)

With several devices, Lightning starts this command again once per further rank. Those ranks get
their batches from rank 0, and neither read the pipes nor publish.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core.components import build_component
from aurora_core.config import ComponentSection, LearnerSection
from aurora_core.errors import ConfigError
from aurora_core.learner.control import Control, EventWriter
from aurora_core.learner.plan import LearnerPlan
from aurora_core.learner.protocol import Started, Stopped
from aurora_core.learner.start import run_by_plan
from aurora_core.plugins import Plugins
from aurora_core.versions import VersionStore

if TYPE_CHECKING:
    import lightning
    from torch import nn

    from aurora_core.interfaces import Speculator, TraceReader
    from aurora_core.learner.checkpoint import Checkpoints
    from aurora_core.learner.lineage import Lineage
    from aurora_core.learner.module import LearnerModule
    from aurora_core.learner.stream import TraceStream
    from aurora_core.target.weights import TargetWeights

log = logging.getLogger(__name__)

_M_MMAP_THRESHOLD = -3  # from malloc.h


def main(arguments: list[str]) -> int:
    """Run `python -m aurora_core.learner PLAN.json`; return the exit status."""
    from aurora_core.learner.ranks import is_first_process

    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    return run_by_plan(run, arguments, module="aurora_core.learner", has_pipes=is_first_process())


def run(plan: LearnerPlan, *, control: Control, events: EventWriter) -> None:
    """Learn until told to stop, or until `max_steps`.

    Args:
        plan: what to learn.
        control: when to stop, and which version is live.
        events: where to report.

    Raises:
        AuroraError: the plan, the target, the sink or a checkpoint cannot be used.
    """
    plugins = Plugins()
    plugins.load(plan.plugins)
    section = ComponentSection.model_validate({"name": plan.speculator, **plan.speculator_options})
    speculator = build_component(plugins, "speculators", section, target=plan.target)
    if not speculator.trainable:
        raise ConfigError(
            f"speculator {plan.speculator!r} is not trained by gradients: it needs no learner"
        )
    _limit_resources(plan.learner)

    # Torch and Lightning take seconds: by now the cheap mistakes are found.
    import torch
    from lightning.pytorch import seed_everything

    from aurora_core.learner.checkpoint import Checkpoints
    from aurora_core.learner.lightning_trainer import make_trainer
    from aurora_core.learner.lineage import Lineage, lineage_identity
    from aurora_core.learner.module import LearnerModule
    from aurora_core.learner.ranks import is_first_process
    from aurora_core.target.weights import TargetWeights

    torch.set_num_threads(plan.learner.num_threads)
    seed_everything(plan.seed, verbose=False)
    weights = TargetWeights(plan.target)
    folder = Path(plan.learner_dir)
    folder.mkdir(parents=True, exist_ok=True)
    # Before the wait for traces: what Lightning refuses is told at once, and ends the run.
    make_trainer(plan.learner, [], folder=folder)
    lineage = Lineage(
        folder / "lineage", lineage_identity(plan.target, plan.speculator, speculator)
    )
    reader = None
    if is_first_process():
        sink_section = ComponentSection.model_validate({"name": plan.sink, **plan.sink_options})
        reader = build_component(plugins, "trace_sinks", sink_section).open_reader()
    built = _drafter(plan, speculator, weights, lineage, reader, control=control, events=events)
    if built is None:
        events.write(Stopped(step=0))
        return
    drafter, parent = built
    module = LearnerModule(speculator, drafter, plan.learner, lineage=lineage.identity)
    module.newest_version = parent
    checkpoints = Checkpoints(folder)
    resume = checkpoints.newest_usable(module)
    path, step = resume if resume is not None else (None, 0)
    trainer, stream = _trainer(
        plan, speculator, weights, module, checkpoints, reader, control=control, events=events
    )
    events.write(Started(step=step, resumed=resume is not None))
    trainer.fit(module, train_dataloaders=stream, ckpt_path=path, weights_only=True)
    events.write(Stopped(step=trainer.global_step))


def _drafter(
    plan: LearnerPlan,
    speculator: Speculator,
    weights: TargetWeights,
    lineage: Lineage,
    reader: TraceReader | None,
    *,
    control: Control,
    events: EventWriter,
) -> tuple[nn.Module, int | None] | None:
    """Return (drafter before the first step, its parent); None if told to stop while waiting."""
    from aurora_core.learner.first_traces import wait_for_traces

    if not lineage.exists:
        assert reader is not None, "rank 0 begins the lineage before it starts other ranks"
        parent = None
        if plan.initial_version is not None:
            initial = VersionStore(Path(plan.versions_dir)).verify(plan.initial_version.version)
            drafter, parent = speculator.load(Path(initial.path), weights), initial.version
        else:
            traces = wait_for_traces(
                reader, speculator, plan.learner.start_traces, control=control, events=events
            )
            if traces is None:
                return None
            drafter = speculator.build_module(weights, traces)
        lineage.begin(drafter, speculator, parent=parent)
    # Also when it has just begun: a restart must find exactly what training starts from now.
    return lineage.open(speculator, weights)


def _trainer(
    plan: LearnerPlan,
    speculator: Speculator,
    weights: TargetWeights,
    module: LearnerModule,
    checkpoints: Checkpoints,
    reader: TraceReader | None,
    *,
    control: Control,
    events: EventWriter,
) -> tuple[lightning.Trainer, TraceStream]:
    """Return the trainer with its callbacks, and the stream to train on."""
    from aurora_core.learner.checkpoint import CheckpointLearner
    from aurora_core.learner.holdout import HoldoutReplay
    from aurora_core.learner.lightning_trainer import StopWhenTold, make_trainer
    from aurora_core.learner.progress import ReportProgress
    from aurora_core.learner.publish import PublishDraft
    from aurora_core.learner.stream import TraceStream

    stream = TraceStream(
        reader, speculator, plan.learner, control=control, events=events, health=module.health
    )
    progress = ReportProgress(module, stream, events)
    callbacks: list[lightning.Callback] = [StopWhenTold(control), progress]
    if reader is not None:
        publisher = PublishDraft(
            module,
            VersionStore(Path(plan.versions_dir)),
            reader,
            weights,
            plan.learner,
            folder=checkpoints.folder,
            replay=HoldoutReplay(
                speculator,
                num_speculative_tokens=plan.num_speculative_tokens,
                batch_traces=plan.learner.batch_traces,
            ),
            progress=progress,
            control=control,
            events=events,
        )
        stream.on_rest = publisher.publish_if_due
        callbacks.append(publisher)
    callbacks.append(CheckpointLearner(checkpoints, plan.learner.checkpoint_every_s))
    trainer = make_trainer(plan.learner, callbacks, folder=checkpoints.folder)
    stream.num_ranks = trainer.world_size
    return trainer, stream


def return_freed_memory() -> None:
    """Let every freed tensor of 4 MiB and more go back to the system at once.

    By itself, glibc learns to keep tensors of up to 32 MiB on its heap. There, cached traces settle
    in the holes that gradients leave, and every step takes new memory: 18 MiB a step were measured
    with EAGLE-3 on a 135M-parameter target, without an end. Steps take no longer with this.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, 4 << 20)


def _limit_resources(options: LearnerSection) -> None:
    """Leave the processor to the engine. Must come before torch is imported."""
    os.nice(options.niceness)
    return_freed_memory()
    # Threads that spin at a barrier cost the engine more than the learner gains.
    os.environ.setdefault("OMP_NUM_THREADS", str(options.num_threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
