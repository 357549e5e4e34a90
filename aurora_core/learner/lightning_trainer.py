"""The Lightning Trainer, without what a process that nobody watches has no use for."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
from lightning.fabric.utilities.exceptions import MisconfigurationException

from aurora_core.errors import ConfigError

if TYPE_CHECKING:
    from aurora_core.config import LearnerSection
    from aurora_core.learner.control import Control


def make_trainer(
    options: LearnerSection, callbacks: list[lightning.Callback], *, folder: Path
) -> lightning.Trainer:
    """Return a trainer on the devices that the options name.

    Raises:
        ConfigError: devices, strategy or precision that are not there or do not fit together.
    """
    if options.strategy != "auto" and not options.strategy.startswith("ddp"):
        raise ConfigError(
            f"learner.strategy {options.strategy!r} splits parameters between devices, which Muon "
            "and publishing do not support; use 'auto' or 'ddp'"
        )
    if options.precision in ("16", "16-mixed", "16-true"):
        raise ConfigError(
            f"learner.precision {options.precision!r} needs loss scaling, which the learner does "
            "not do; use 'bf16-mixed' or '32-true'"
        )
    # Its advice on dataloaders, loggers and its own use of torch is not for whoever reads the log.
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    settings: dict[str, Any] = {
        "accelerator": options.accelerator,
        "devices": options.devices,
        "strategy": options.strategy,
        "precision": options.precision,
    }
    try:
        return lightning.Trainer(
            **settings,
            max_steps=options.max_steps,
            max_epochs=-1,
            callbacks=callbacks,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
    except (MisconfigurationException, ValueError, RuntimeError, ImportError) as error:
        chosen = ", ".join(f"learner.{name} {value!r}" for name, value in settings.items())
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"Lightning cannot train with {chosen}: {reason}") from error


class StopWhenTold(lightning.Callback):
    """Ends the training when the stream has ended, and keeps signals ours.

    An epoch lasts as long as the stream; Lightning would begin the next one.
    """

    def __init__(self, control: Control) -> None:
        self.control = control

    def on_train_start(self, *_: Any) -> None:
        """Undo Lightning's signal handlers, under which SIGTERM skips the last checkpoint."""
        self.control.catch_signals()

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Tell Lightning that there is no next epoch."""
        trainer.should_stop = True
