"""Acceptance lengths of a held-out replay."""

from __future__ import annotations

from aurora_core.acceptance import holdout_acceptance_length
from aurora_core.records import Holdout


def acceptance_of(holdout: Holdout) -> tuple[float, float | None]:
    """Return the acceptance lengths of the candidate and of the drafter it was compared with.

    The second one is 1.0 when nothing was live, and None when the live one was not scored.
    """
    anchors = holdout.num_anchors
    if not sum(anchors):
        return 1.0, None
    candidate = holdout_acceptance_length(anchors, holdout.candidate_accepted)
    if holdout.live_version is None:
        return candidate, 1.0
    if not holdout.live_accepted:
        return candidate, None
    return candidate, holdout_acceptance_length(anchors, holdout.live_accepted)
