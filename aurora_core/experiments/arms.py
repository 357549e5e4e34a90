"""The arms of the domain-shift experiment: six ways to serve the same traffic."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aurora_core.config import ComponentSection
from aurora_core.errors import ConfigError
from aurora_core.versions import RunState, VersionStore, read_run_state, write_run_state

if TYPE_CHECKING:
    from aurora_core.config import RunConfig

_NOT_CONTINUED = shutil.ignore_patterns(
    "logs", "engine", "mlflow.db", "mlartifacts", "report.*", "run.lock", "control.sock",
    "verdicts.jsonl",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to serve."""

    name: str
    label: str
    """What tables and plots call it."""
    begins_with: Literal["nothing", "drafter", "run"]
    """`drafter`: the version that pretraining left live, and nothing else; `run`: everything it
    left, so that learning goes on."""
    learns: bool
    """Whether requests leave traces to learn from."""
    guarded: bool
    """Whether the guard of the configuration is in force."""
    speculator: str | None = None
    """Instead of the configured one."""
    swap_policy: str | None = None
    """The same."""


ARMS: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm(
            name="none", label="no speculation", begins_with="nothing", learns=False, guarded=False
        ),
        Arm(
            name="ngram",
            label="n-gram",
            begins_with="nothing",
            learns=True,
            guarded=False,
            speculator="ngram",
        ),
        Arm(name="static", label="static", begins_with="drafter", learns=False, guarded=False),
        Arm(
            name="always",
            label="online, no gate",
            begins_with="run",
            learns=True,
            guarded=False,
            swap_policy="always",
        ),
        Arm(name="gate", label="online, gate", begins_with="run", learns=True, guarded=True),
        Arm(
            name="scratch",
            label="online, from scratch",
            begins_with="nothing",
            learns=True,
            guarded=True,
        ),
    )
}
"""In the order in which they are run. The first one is the one that outputs are compared with."""

_UNGUARDED = {"probation_requests": 0, "disable_speculation": False, "plain_share": 0.0}


def configure(arm: Arm, config: RunConfig) -> RunConfig:
    """Return the configuration of an arm; what it does not set stays as it is."""
    update: dict[str, object] = {}
    if arm.speculator is not None:
        update["speculator"] = ComponentSection(name=arm.speculator)
    if arm.swap_policy is not None:
        update["swap_policy"] = ComponentSection(name=arm.swap_policy)
    if not arm.guarded:
        update["guard"] = config.guard.model_copy(update=_UNGUARDED)
    return config.model_copy(update=update)


def champion_of(run_dir: Path) -> int:
    """Return the version that a run left live.

    Raises:
        ConfigError: it left none.
        CheckpointError: its state cannot be read.
    """
    champion = read_run_state(run_dir / "state.json").champion
    if champion is None:
        raise ConfigError(
            f"the run in {str(run_dir)!r} left no drafter live to begin with; pretrain on more "
            "requests, or name a run that did with --pretrained"
        )
    return champion


def lay_out(arm: Arm, run_dir: Path, *, pretrained: Path | None) -> None:
    """Make the directory in which an arm begins, whatever an interrupted attempt left there.

    Args:
        arm: says what it begins with.
        run_dir: of the arm.
        pretrained: directory of the run before; needed unless it begins with nothing.

    Raises:
        ConfigError: that run left no drafter live.
        CheckpointError: its drafter is damaged.
    """
    shutil.rmtree(run_dir, ignore_errors=True)
    if arm.begins_with == "nothing":
        return
    assert pretrained is not None
    champion = champion_of(pretrained)
    VersionStore(pretrained / "versions").verify(champion)
    if arm.begins_with == "run":
        shutil.copytree(pretrained, run_dir, ignore=_NOT_CONTINUED)
        state = replace(read_run_state(run_dir / "state.json"), challenger=None, trial=None)
        write_run_state(run_dir / "state.json", state)
        return
    versions = run_dir / "versions"
    source = VersionStore(pretrained / "versions").directory(champion)
    shutil.copytree(source, versions / source.name)
    write_run_state(run_dir / "state.json", RunState(champion=champion, pinned=True))


def clear_away(run_dir: Path) -> None:
    """Delete what takes room and is of no use once an arm is done; records and logs stay."""
    for name in ("spool", "versions", "learner"):
        shutil.rmtree(run_dir / name, ignore_errors=True)
