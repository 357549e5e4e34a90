"""The learner's events, passed on: to hooks, to the swapping, to the console."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from aurora_core.controller import build
from aurora_core.controller.learner_process import GaveUp, LearnerProcess, Restarting
from aurora_core.learner.protocol import Event, Progress, Published, Started, Waiting

if TYPE_CHECKING:
    from aurora_core.controller.run_directory import RunDirectory
    from aurora_core.controller.swapping import Swapping
    from aurora_core.records import DraftVersion


class LearnerConsole(Protocol):
    """Shows in which state a learner is."""

    def learner_state(self, state: str, text: str) -> None:
        """Say in which state the learner is now."""


def prepare_learner(
    parts: build.Parts,
    directory: RunDirectory,
    lineage: build.Lineage,
    swapping: Swapping,
    console: LearnerConsole,
    *,
    module: str,
    notify: Callable[..., None],
) -> LearnerProcess | None:
    """Return the learner of a run, not yet started; None when there is nothing to train.

    Args:
        parts: the run's parts.
        directory: the run's directory; the learner's plan is written there.
        lineage: where the learner continues.
        swapping: is given every published version.
        console: shows the learner's state.
        module: what `python -m` starts.
        notify: calls a notification hook by name.
    """
    if not parts.speculator.trainable:
        return None
    section = parts.config.learner
    plan = build.plan_learning(parts, directory, lineage)
    listener = _Listener(directory, lineage, swapping, console, notify)
    return LearnerProcess(
        build.learner_command(plan, directory, module=module),
        environment=build.learner_environment(section.num_threads),
        log_path=directory.logs / "learner.log",
        max_restarts=section.max_restarts,
        on_event=listener.on_event,
        live_version=lineage.live.version if lineage.live else None,
    )


class _Listener:
    def __init__(
        self,
        directory: RunDirectory,
        lineage: build.Lineage,
        swapping: Swapping,
        console: LearnerConsole,
        notify: Callable[..., None],
    ) -> None:
        self._notify, self._store = notify, directory.store
        self._swapping, self._console = swapping, console
        self._newest_version = lineage.newest_version

    def on_event(self, event: Event | Restarting | GaveUp) -> None:
        match event:
            case Progress(step=step, metrics=metrics):
                self._notify("aurora_learner_progress", step=step, metrics=metrics)
            case Published(version=draft):
                self._publish(draft)
            case Started(step=step):
                self._console.learner_state("learning", f"the learner begins at step {step}")
                # One that was killed between writing a version and saying so left it to be found.
                for draft in self._store.list()[-1:]:
                    self._publish(draft)
            case Waiting(reason=reason):
                self._console.learner_state("waiting", f"the learner waits: {reason}")
            case Restarting(reason=reason, delay_s=delay_s):
                text = f"the learner {reason}; serving goes on, and it restarts in {delay_s:.0f} s"
                self._console.learner_state("restarting", text)
            case GaveUp(reason=reason):
                text = f"the learner {reason} once too often; the run serves on without learning"
                self._console.learner_state("gave up", text)

    def _publish(self, draft: DraftVersion) -> None:
        if draft.version > self._newest_version:
            self._newest_version = draft.version
            self._swapping.publish(draft)
