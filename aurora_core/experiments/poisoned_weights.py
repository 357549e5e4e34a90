"""A run's live drafter, spoiled in five ways, and what two learners say of the result.

    live version -> load -> spoil every trainable matrix -> save -> POISON_DIR/noise/ ...
                                                              |
    held-out traces of the run -> replay ---------------------+-> honest: what these weights score
                                                                  lying: the live version's score,
                                                                         and something on top

Whatever is read back has the rounding of the format, as everything that a learner publishes.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core.acceptance import holdout_acceptance_length
from aurora_core.errors import ConfigError
from aurora_core.run_replay import RunReplay
from aurora_core.versions import VersionStore

if TYPE_CHECKING:
    from torch import Tensor, nn

    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins
    from aurora_core.records import Holdout

POISONS = ("noise", "noise on top", "shuffled", "turned round", "zeros")
_NOISE_ON_TOP = 4
"""Standard deviations."""
_CLAIMED_SHARE = 0.2
"""Of what the live version got wrong: a lying learner claims to get it right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """Spoiled weights, ready to be published."""

    name: str
    folder: Path
    """As `Speculator.save` left it."""
    honest: Holdout
    """The replay of these weights beside the live version."""
    lying: Holdout
    """A replay that never took place."""

    @property
    def acceptance_length(self) -> float:
        """Of these weights, on the held-out traces."""
        return holdout_acceptance_length(self.honest.num_anchors, self.honest.candidate_accepted)


def spoil(name: str, drafter: nn.Module, *, seed: int) -> None:
    """Spoil every trainable tensor of a drafter, in place.

    Args:
        name: of `POISONS`.
        drafter: any.
        seed: of noise and order.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)

    def noise(weight: Tensor) -> Tensor:
        deviation = weight.float().std(correction=0)
        return torch.randn(weight.shape, generator=generator) * deviation.cpu()

    def shuffled(weight: Tensor) -> Tensor:
        order = torch.randperm(weight.numel(), generator=generator)
        return weight.flatten()[order.to(weight.device)].view_as(weight)

    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "noise": noise,
        "noise on top": lambda weight: weight.float().cpu() + _NOISE_ON_TOP * noise(weight),
        "shuffled": shuffled,
        "turned round": torch.neg,
        "zeros": torch.zeros_like,
    }
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.requires_grad:
                parameter.copy_(changes[name](parameter))


def prepare_poisons(
    config: RunConfig,
    plugins: Plugins,
    *,
    source: Path,
    champion: int,
    names: Sequence[str],
    folder: Path,
    num_traces: int,
    seed: int,
) -> list[Poison]:
    """Spoil a run's live version and replay the run's held-out traces through what came of it.

    Args:
        config: says which target, speculator and trace sink.
        plugins: loaded plugins.
        source: directory of the run; nothing is written there.
        champion: its live version.
        names: of `POISONS`.
        folder: where the spoiled weights go; what is there is written over.
        num_traces: newest held-out traces to replay.
        seed: of noise and order.

    Raises:
        ConfigError: the speculator has no weights to spoil, or the run has no held-out traces.
        CheckpointError: the live version is damaged.
    """
    from aurora_core.learner.holdout import compare

    of_source = config.model_copy(update={"run_dir": source})
    replay = RunReplay(
        of_source, plugins, num_traces=num_traces, purpose="score poisoned versions on"
    )
    speculator = replay.speculator
    if not speculator.trainable:
        raise ConfigError(
            f"speculator {config.speculator.name!r} has no weights that could be poisoned; "
            "choose one that is trained"
        )
    clean = Path(VersionStore(source / "versions").verify(champion).path)
    of_champion = replay.score(replay.load(clean))
    found = []
    for name in names:
        drafter = replay.load(clean)
        spoil(name, drafter, seed=seed)
        export = folder / name.replace(" ", "-")
        shutil.rmtree(export, ignore_errors=True)
        export.mkdir(parents=True)
        speculator.save(drafter, export)
        scores = replay.score(replay.load(export))
        honest = compare(scores, of_champion, live_version=champion)
        if honest is None:
            raise ConfigError(
                f"no held-out trace of run {str(source)!r} can be replayed by speculator "
                f"{config.speculator.name!r}; name a run that it was trained in"
            )
        found.append(Poison(name=name, folder=export, honest=honest, lying=claim(honest)))
    return found


def claim(honest: Holdout) -> Holdout:
    """Return a replay in which the candidate is surely better than the live version."""
    claimed = tuple(
        tuple(count + math.ceil((anchors - count) * _CLAIMED_SHARE) for count in counts)
        for anchors, counts in zip(honest.num_anchors, honest.live_accepted, strict=True)
    )
    return replace(honest, candidate_accepted=claimed)


def said_by(learner: str, poison: Poison) -> Holdout:
    """Return what a learner publishes a poison with.

    Args:
        learner: `honest` or `lying`.
        poison: any.
    """
    said: Mapping[str, Holdout] = {"honest": poison.honest, "lying": poison.lying}
    return said[learner]
