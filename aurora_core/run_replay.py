"""The held-out traces of a run, and what its speculator's checkpoints score on them."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core.components import build_component, run_defaults
from aurora_core.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from aurora_core.config import RunConfig
    from aurora_core.interfaces import TraceSink
    from aurora_core.learner.holdout import Score
    from aurora_core.plugins import Plugins
    from aurora_core.records import Trace


class RunReplay:
    """Replays the newest traces that no version of a run was trained on.

    Args:
        config: of the run; its directory holds the traces, and nothing is written there.
        plugins: loaded plugins.
        num_traces: newest held-out traces to replay.
        purpose: for the message, what they are wanted for: `no held-out traces to ...`.

    Raises:
        TargetError: the target of the run cannot be obtained or read.
        ConfigError: there are no held-out traces.
    """

    def __init__(
        self, config: RunConfig, plugins: Plugins, *, num_traces: int, purpose: str
    ) -> None:
        from aurora_core.learner.holdout import HoldoutReplay
        from aurora_core.target.pull import pull_target
        from aurora_core.target.spec import read_target_spec
        from aurora_core.target.weights import TargetWeights

        target = read_target_spec(pull_target(config.target), name=config.target)
        self.speculator = build_component(plugins, "speculators", config.speculator, target=target)
        sink = build_component(
            plugins, "trace_sinks", config.trace_sink, defaults=run_defaults(config, "trace_sinks")
        )
        self.traces = held_out_traces(sink, num_traces)
        """Oldest first."""
        if not self.traces:
            raise ConfigError(
                f"run {str(config.run_dir)!r} holds no held-out traces to {purpose}; serve more "
                "requests, or raise trace_sink.holdout_fraction"
            )
        self._weights = TargetWeights(target)
        self._replay = HoldoutReplay(
            self.speculator,
            num_speculative_tokens=config.num_speculative_tokens,
            batch_traces=config.learner.batch_traces,
        )

    def load(self, folder: Path) -> nn.Module:
        """Return the drafter of a checkpoint.

        Raises:
            CheckpointError: it is damaged, or made for something else.
        """
        return self.speculator.load(folder, self._weights)

    def score(self, drafter: nn.Module) -> dict[str, Score]:
        """Return trace id -> score, in order; traces that cannot be collated are left out."""
        return self._replay.score(drafter, self.traces)


def held_out_traces(sink: TraceSink, num_traces: int) -> list[Trace]:
    """Return the newest held-out traces of a sink, oldest first; nothing is deleted for age."""
    from aurora_core.spool.reader import is_held_out

    reader = sink.open_reader()
    fraction = getattr(sink.options, "holdout_fraction", None)
    if fraction is None:  # not the built-in sink: only itself knows its split
        reader.poll()
        return reader.holdout(num_traces)
    found = (one for one in reader.iterate() if is_held_out(one.request_key, fraction))
    return list(deque(found, maxlen=num_traces))
