"""Batches from a trace sink for as long as the learner runs.

sink -- poll, sample --> rank 0: choose, collate --> deliver --> training step of each rank
                         rests when nothing is left to learn, and watches for a stop
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from aurora_core.learner.batches import collate_usable
from aurora_core.learner.protocol import Waiting
from aurora_core.learner.ranks import deliver
from aurora_core.learner.rewards import RewardCurve

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_core.config import LearnerSection
    from aurora_core.interfaces import Speculator, TraceReader
    from aurora_core.learner.control import Control, EventWriter
    from aurora_core.learner.health import BadShare
    from aurora_core.records import Trace

_POLL_S = 0.15
_SPEAK_AFTER_S = 1.0
"""A rest shorter than this is not worth an event."""
_PAUSE_S = 10.0
_MAX_REMEMBERED = 16_384
"""Trace ids that are remembered; a forgotten one may be replayed more often than allowed."""

_Message = dict[str, "Tensor"] | Literal["rest", "stop"]


class TraceStream:
    """The iterable that Lightning trains on; ends when the learner is to stop.

    It defines `__len__` although it is endless: for an iterable without one, Lightning's fetcher
    waits for batch t + 1 before it trains on batch t, so the last traces of a burst would lie
    untrained until the next burst. It is stateful, so that Lightning keeps the sink's cursor in
    its checkpoints and restores it.

    Args:
        reader: the sink; None on ranks other than 0.
        speculator: collates.
        options: batch size, share of new traces, replays.
        control: tells when to stop.
        events: where to say that training rests.
        health: pauses the stream while too much is bad.
        num_ranks: processes to feed.
        pause_s: how long a pause lasts.
    """

    def __init__(
        self,
        reader: TraceReader | None,
        speculator: Speculator,
        options: LearnerSection,
        *,
        control: Control,
        events: EventWriter,
        health: BadShare,
        num_ranks: int = 1,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self.reader, self.speculator, self.options = reader, speculator, options
        self.control, self.events, self.health = control, events, health
        self.num_ranks, self.pause_s = num_ranks, pause_s
        self.on_rest: Callable[[], None] = lambda: None
        """Called again and again while training rests."""
        self.num_skipped_traces = 0
        """Traces that the speculator refused."""
        self.draft_version: float | None = None
        """Mean of the oldest draft version in each trace of the latest batch; None if they have
        none."""
        self.rewards = RewardCurve()
        """Of the traces trained on, each counted the first time."""
        self.data_window: tuple[float, float] | None = None
        """When the oldest and the newest request arrived that were trained on; reset by whoever
        publishes."""
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._bad: OrderedDict[str, None] = OrderedDict()
        self._replays_left = 0
        self._is_exhausted = False
        self._resting_since: float | None = None
        self._has_spoken = False

    def __len__(self) -> int:
        return 2**31 - 1

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            message = deliver(None if self.reader is None else self._prepare(self.reader))
            if message == "stop":
                return
            if message != "rest":
                yield message

    def _prepare(self, reader: TraceReader) -> list[_Message]:
        """Return what each rank does next."""
        if self.control.is_stopping:
            return ["stop"] * self.num_ranks
        if not self.control.has_turn:
            self.control.rest(_POLL_S)
            return ["rest"] * self.num_ranks
        num_new = reader.poll()
        if self.health.exceeded:
            self._pause()
        elif num_new or not self._is_exhausted:
            batches = self._take(reader)
            if batches:
                self._resting_since, self._has_spoken = None, False
                return batches
        self._rest()
        return ["rest"] * self.num_ranks

    def _take(self, reader: TraceReader) -> list[_Message]:
        """Return one batch for each rank, or nothing if there are not enough traces."""
        num_traces = self.options.batch_traces * self.num_ranks
        fresh = (
            num_traces if self.control.wants_fresh else self.options.fresh_traces * self.num_ranks
        )
        sample = reader.sample(num_traces, fresh=fresh)
        new = {trace.trace_id for trace in sample} - self._seen.keys()
        chosen = [trace for trace in sample if self._may_train(trace.trace_id)]
        # Then only an arrival changes something: until one comes, the sink is left alone.
        self._is_exhausted = not chosen and self._replays_left == 0
        batches: list[_Message] = []
        trained: list[Trace] = []
        for rank in range(self.num_ranks):
            batch, usable, bad = collate_usable(self.speculator, chosen[rank :: self.num_ranks])
            for trace in bad:
                self.health.record(is_bad=True)
                self.num_skipped_traces += 1
                _remember(self._bad, [trace.trace_id])
            if batch is None:
                return []
            batches.append(batch)
            trained += usable
        self.draft_version = _mean_draft_version(trained)
        times = [*(self.data_window or ()), *(trace.created for trace in trained)]
        self.data_window = (min(times), max(times)) if times else None
        for trace in trained:
            if trace.trace_id in new:
                self.rewards.add(trace)
        return batches

    def _may_train(self, trace_id: str) -> bool:
        """Whether to train on a trace now: always the first time, then as replays allow."""
        if trace_id in self._bad:
            return False
        if trace_id not in self._seen:
            _remember(self._seen, [trace_id])
            self._replays_left += self.options.max_replays_per_trace
            return True
        self._replays_left -= 1
        if self._replays_left < 0:
            self._replays_left = 0
            return False
        return True

    def _rest(self) -> None:
        now = time.monotonic()
        if self._resting_since is None:
            self._resting_since = now
        if not self._has_spoken and now - self._resting_since >= _SPEAK_AFTER_S:
            self._has_spoken = True
            self.events.write(Waiting(reason="every trace is learned from; waiting for new ones"))
        self.on_rest()
        self.control.rest(_POLL_S)

    def _pause(self) -> None:
        self.events.write(
            Waiting(
                reason=f"{self.health.share:.0%} of the latest traces and batches were unusable; "
                f"trying again in {self.pause_s:.0f} s"
            )
        )
        self._has_spoken = True
        self.control.rest(self.pause_s)
        self.health.forget()

    def state_dict(self) -> dict[str, Any]:
        """Return the sink's cursor and what was learned from; plain data."""
        return {
            "reader": None if self.reader is None else self.reader.state_dict(),
            "seen": list(self._seen),
            "bad": list(self._bad),
            "replays_left": self._replays_left,
            "num_skipped_traces": self.num_skipped_traces,
            "rewards": self.rewards.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        if self.reader is None:
            return
        self.reader.load_state_dict(state["reader"])
        _remember(self._seen, state["seen"])
        _remember(self._bad, state["bad"])
        self._replays_left = state["replays_left"]
        self.num_skipped_traces = state["num_skipped_traces"]
        self.rewards.load_state_dict(state.get("rewards", {}))  # absent in older checkpoints


def _remember(ids: OrderedDict[str, None], new: Iterable[str]) -> None:
    ids.update(dict.fromkeys(new))
    while len(ids) > _MAX_REMEMBERED:
        ids.popitem(last=False)


def _mean_draft_version(traces: Iterable[Trace]) -> float | None:
    oldest = [
        int(drafted.min())
        for trace in traces
        if (drafted := trace.steps.version[trace.steps.version >= 0]).numel()
    ]
    return sum(oldest) / len(oldest) if oldest else None
