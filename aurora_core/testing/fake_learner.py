"""A learner process without a model: `python -m aurora_core.testing.fake_learner PLAN.json`.

It speaks the protocol of `aurora_core.learner.protocol` and publishes versions that look ever
better, one every `learner.publish_every_s` seconds, `learner.max_steps` of them at most. Like the
real one it continues from what it finds on disk, so it may be killed at any moment. No torch.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from aurora_core.errors import AuroraError
from aurora_core.learner.plan import LearnerPlan, read_plan
from aurora_core.learner.protocol import (
    USER_ERROR,
    Event,
    Live,
    Progress,
    Published,
    Started,
    Stop,
    Stopped,
    Turn,
    Waiting,
    event_line,
    read_command,
)
from aurora_core.records import Holdout
from aurora_core.versions import VersionStore

STEPS_PER_VERSION = 10
TOKENS_PER_STEP = 100


def main(plan_path: Path) -> int:
    """Run until told to stop; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        plan = read_plan(plan_path)
    except AuroraError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    FakeLearner(plan).run()
    return 0


class FakeLearner:
    """Publishes on a timer; the live version it is told of is the one it compares with."""

    def __init__(self, plan: LearnerPlan) -> None:
        self._plan = plan
        self._store = VersionStore(Path(plan.versions_dir))
        self._stop = threading.Event()
        self._live_version: int | None = None
        self._has_turn = True

    def run(self) -> None:
        """Learn until stopped, and report everything."""
        newest = self._store.next_version() - 1
        _say(Waiting(reason="16 traces are needed, 0 are there"))
        _say(Started(step=newest * STEPS_PER_VERSION, resumed=newest > 0))
        threading.Thread(target=self._listen, daemon=True).start()
        last = self._plan.learner.max_steps
        while not self._stop.is_set():
            if self._stop.wait(self._plan.learner.publish_every_s):
                break
            if self._has_turn and (last == -1 or newest < last):
                newest += 1
                self._publish(newest)
        _say(Stopped(step=newest * STEPS_PER_VERSION))

    def _listen(self) -> None:
        for line in sys.stdin:
            match read_command(line):
                case Live(version=version):
                    self._live_version = version
                case Turn(granted=granted):
                    self._has_turn = granted
                case Stop():
                    break
        self._stop.set()

    def _publish(self, version: int) -> None:
        step = version * STEPS_PER_VERSION
        metrics = {"train/loss": 4.0 / version, "train/num_tokens": float(step * TOKENS_PER_STEP)}
        _say(Progress(step=step, metrics=metrics))
        draft = self._store.stage(
            version,
            lambda path: _write_weights(path, version),
            parent=version - 1 or None,
            speculator=self._plan.speculator,
            target_fingerprint=self._plan.target.fingerprint,
            global_step=step,
            num_tokens_trained=step * TOKENS_PER_STEP,
            metrics=metrics,
            holdout=self._holdout(version),
        )
        _say(Published(version=draft))

    def _holdout(self, version: int) -> Holdout:
        live = self._live_version
        anchors = tuple(100 + trace for trace in range(32))
        return Holdout(
            live_version=live,
            num_anchors=anchors,
            candidate_accepted=tuple(_accepted(version, count) for count in anchors),
            live_accepted=tuple(_accepted(live, count) for count in anchors) if live else (),
        )


def _write_weights(path: Path, version: int) -> None:
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(f"weights of version {version}".encode())


def _accepted(version: int, num_anchors: int) -> tuple[int, ...]:
    return tuple(int(num_anchors * (1 - 0.8**version) ** (depth + 1)) for depth in range(3))


def _say(event: Event) -> None:
    sys.stdout.buffer.write(event_line(event))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
