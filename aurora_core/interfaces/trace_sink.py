"""What traces go through from engine to learner: a sink and its two ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

from aurora_core.interfaces.component import Component
from aurora_core.records import SinkStats, Trace


class TraceSink(Component, ABC):
    """The bounded buffer between serving and learning: the replay of actor-learner RL.

    Writers and readers are opened from the sink's URL in other processes, so that the engine's
    half needs nothing of the learner's.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Return an address that `open_writer` and `open_reader` understand elsewhere."""

    def check(self) -> None:
        """See that `prepare` would succeed; create nothing. `aurora check` calls it.

        Raises:
            TraceError: it would not, in the words of `prepare`.
        """
        return

    def prepare(self) -> None:
        """Create what the ends will need. The controller calls it before it starts any process.

        Raises:
            TraceError: it cannot be created or written.
        """

    @abstractmethod
    def open_writer(self) -> TraceWriter:
        """Return the engine's end."""

    @abstractmethod
    def open_reader(self) -> TraceReader:
        """Return the learner's end."""

    @abstractmethod
    def stats(self) -> SinkStats:
        """Return what is held and what was shed, over all writers."""


class TraceWriter(ABC):
    """The engine's end of a sink. Never blocks: a trace that finds no room is shed and counted."""

    @abstractmethod
    def put(self, trace: Trace) -> bool:
        """Hand over a finished trace; False if it was shed. Returns in microseconds."""

    @abstractmethod
    def stats(self) -> SinkStats:
        """Return this writer's counts."""

    @abstractmethod
    def close(self) -> None:
        """Write what was handed over, then release the sink. Callable twice."""


class TraceReader(ABC):
    """The learner's end of a sink."""

    @abstractmethod
    def poll(self) -> int:
        """Take in traces that arrived since the last call; return how many."""

    @abstractmethod
    def sample(self, num_traces: int, *, fresh: int) -> list[Trace]:
        """Return up to `num_traces` training traces, at most `fresh` of them never seen before.

        The rest are drawn at random from those seen. Held-out traces are never returned. Fewer
        than asked, or none, come back when the sink holds too few.
        """

    @abstractmethod
    def holdout(self, num_traces: int) -> list[Trace]:
        """Return the newest held-out traces, oldest first."""

    @abstractmethod
    def iterate(self) -> Iterator[Trace]:
        """Yield every readable trace, oldest first; for offline experiments."""

    @property
    @abstractmethod
    def num_training(self) -> int:
        """Training traces held now."""

    @abstractmethod
    def state_dict(self) -> dict[str, object]:
        """Return the cursor and random state, JSON-serialisable, for resuming."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue where `state_dict` was taken; traces that are gone by now are forgotten."""
