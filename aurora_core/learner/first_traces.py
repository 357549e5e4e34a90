"""Day 0: waiting for the traces that a new lineage is built from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aurora_core.learner.batches import collate_usable
from aurora_core.learner.protocol import Waiting

if TYPE_CHECKING:
    from aurora_core.interfaces import Speculator, TraceReader
    from aurora_core.learner.control import Control, EventWriter
    from aurora_core.records import Trace

_POLL_S = 0.2
_SPEAK_EVERY_S = 1.0


def wait_for_traces(
    reader: TraceReader,
    speculator: Speculator,
    num_traces: int,
    *,
    control: Control,
    events: EventWriter,
) -> list[Trace] | None:
    """Return the first usable training traces without taking them from the sink.

    Args:
        reader: its state is the same afterwards: the traces still count as never seen.
        speculator: says by `collate` which are usable.
        num_traces: to wait for.
        control: a stop ends the wait.
        events: told how many there are, at most once a second.

    Returns:
        None if the learner is to stop.
    """
    num_wanted, spoken_at, num_spoken = num_traces, 0.0, -1
    while not control.is_stopping:
        reader.poll()
        num_held = reader.num_training
        if num_held >= num_wanted:
            before = reader.state_dict()
            traces = reader.sample(num_wanted, fresh=num_wanted)
            reader.load_state_dict(before)
            _, usable, _ = collate_usable(speculator, traces)
            if len(usable) >= num_traces:
                return usable
            # As many more as were unusable, or evicted between counting and reading.
            num_wanted = max(num_wanted, num_held) + num_traces - len(usable)
        now = time.monotonic()
        if num_held != num_spoken and now - spoken_at >= _SPEAK_EVERY_S:
            spoken_at, num_spoken = now, num_held
            events.write(
                Waiting(reason=f"{num_held} of the {num_wanted} traces to start from are there")
            )
        control.rest(_POLL_S)
    return None
