"""The one definition of each acceptance figure, over plain counts that add up over workers.

With `accepted_per_position[k]`, the verification steps in which draft position k was accepted:

    acceptance length = 1 + accepted / steps = 1 + sum over k of the rate at position k
    acceptance rate   = accepted / drafted

None of them is a speed: how fast a run is stands in its output tokens per second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest


def acceptance_length(num_accepted: int, num_steps: int) -> float:
    """Return mean tokens per verification step, bonus token included; 1.0 without any step.

    Args:
        num_accepted: accepted draft tokens, without bonus tokens.
        num_steps: verification steps, plain decoding steps included.
    """
    return 1.0 + num_accepted / num_steps if num_steps else 1.0


def acceptance_rate(num_accepted: int, num_drafted: int) -> float:
    """Return the share of draft tokens that were accepted, in 0..1; 0.0 if none was drafted."""
    return num_accepted / num_drafted if num_drafted else 0.0


def per_position(accepted_per_position: Sequence[int], num_steps: int) -> tuple[float, ...]:
    """Return, for each draft position, the share of steps in which it was accepted. [K]"""
    return tuple(accepted / num_steps if num_steps else 0.0 for accepted in accepted_per_position)


def sum_per_position(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Add up per-position counts of requests, traces or workers; missing positions count 0."""
    return tuple(sum(position) for position in zip_longest(*counts, fillvalue=0))


def holdout_acceptance_length(
    num_anchors: Sequence[int], accepted: Sequence[Sequence[int]]
) -> float:
    """Return the acceptance length of a held-out replay, pooled over its traces.

    Args:
        num_anchors: [traces] positions that drafting was replayed from.
        accepted: [traces][K] anchors whose first k drafts were all right.
    """
    return acceptance_length(sum(sum_per_position(accepted)), sum(num_anchors))
