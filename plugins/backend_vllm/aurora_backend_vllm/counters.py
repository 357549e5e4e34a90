"""vLLM's own Prometheus counters of speculation, to hold Aurora's figures against."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aurora_core.records import RequestStats

_SAMPLE = re.compile(r"^vllm:spec_decode_(\w+?)(?:_total)?(?:\{([^}]*)\})? ([0-9.eE+]+)$")
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationCounters:
    """Counts since the server started."""

    num_speculative_steps: int = 0
    num_drafted: int = 0
    accepted_per_position: tuple[int, ...] = ()

    def differs_from(self, other: SpeculationCounters) -> bool:
        """Return whether any count is another; trailing zeros do not matter."""
        ours, theirs = (
            tuple(self.accepted_per_position),
            tuple(other.accepted_per_position),
        )
        length = max(len(ours), len(theirs))
        padded = [counts + (0,) * (length - len(counts)) for counts in (ours, theirs)]
        return (
            self.num_speculative_steps != other.num_speculative_steps
            or self.num_drafted != other.num_drafted
            or padded[0] != padded[1]
        )


def read_counters(exposition: str) -> SpeculationCounters:
    """Read the text of vLLM's `/metrics`; counters that are not there are 0."""
    totals: dict[str, float] = {}
    accepted: dict[int, float] = {}
    for line in exposition.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        name, labels, value = sample[1], sample[2] or "", float(sample[3])
        if name == "num_accepted_tokens_per_pos" and (position := _POSITION.search(labels)):
            accepted[int(position[1])] = accepted.get(int(position[1]), 0.0) + value
        else:
            totals[name] = totals.get(name, 0.0) + value
    return SpeculationCounters(
        num_speculative_steps=int(totals.get("num_drafts", 0)),
        num_drafted=int(totals.get("num_draft_tokens", 0)),
        accepted_per_position=tuple(int(accepted[position]) for position in sorted(accepted)),
    )


def count(requests: Sequence[RequestStats]) -> SpeculationCounters:
    """Add up what Aurora counted, request by request."""
    depth = max((len(one.accepted_per_position) for one in requests), default=0)
    return SpeculationCounters(
        num_speculative_steps=sum(one.num_speculative_steps for one in requests),
        num_drafted=sum(one.num_drafted for one in requests),
        accepted_per_position=tuple(
            sum(
                one.accepted_per_position[position]
                for one in requests
                if position < len(one.accepted_per_position)
            )
            for position in range(depth)
        ),
    )
