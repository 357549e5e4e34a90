"""Held-out replay of the candidate beside the live drafter."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from aurora_core.learner.batches import collate_usable
from aurora_core.records import Holdout

if TYPE_CHECKING:
    from torch import nn

    from aurora_core.interfaces import Speculator
    from aurora_core.records import Trace

log = logging.getLogger(__name__)

_MAX_VERSIONS = 16
_LABELS = ("tenant", "route")


class Score(NamedTuple):
    """One drafter on one trace."""

    num_anchors: int
    accepted: tuple[int, ...]
    """[K] Anchors whose first k drafts were all right."""
    tenant: str = ""
    route: str = ""


class HoldoutReplay:
    """Scores drafters on held-out traces and remembers the scores of published versions.

    Published weights never change, so a version is scored once on each trace: comparing a candidate
    with the live version costs little more than scoring the candidate.

    Args:
        speculator: replays.
        num_speculative_tokens: K.
        batch_traces: traces replayed together.
    """

    def __init__(
        self, speculator: Speculator, *, num_speculative_tokens: int, batch_traces: int
    ) -> None:
        self.speculator = speculator
        self.num_speculative_tokens, self.batch_traces = num_speculative_tokens, batch_traces
        self._known: OrderedDict[int, dict[str, Score]] = OrderedDict()

    def score(self, drafter: nn.Module, traces: Sequence[Trace]) -> dict[str, Score]:
        """Return trace id -> score, in order; traces that cannot be collated are left out."""
        scores: dict[str, Score] = {}
        device = next((tensor.device for tensor in drafter.parameters()), torch.device("cpu"))
        was_training = drafter.training
        drafter.eval()
        with torch.no_grad():
            for start in range(0, len(traces), self.batch_traces):
                chunk = traces[start : start + self.batch_traces]
                batch, usable, _ = collate_usable(self.speculator, chunk)
                if batch is None:
                    continue
                accepted, anchors = self.speculator.acceptance(
                    drafter,
                    {name: tensor.to(device) for name, tensor in batch.items()},
                    self.num_speculative_tokens,
                )
                for trace, row, count in zip(
                    usable, accepted.tolist(), anchors.tolist(), strict=True
                ):
                    scores[trace.trace_id] = Score(count, tuple(row), trace.tenant, trace.route)
        drafter.train(was_training)
        return scores

    def remember(self, version: int, scores: Mapping[str, Score]) -> None:
        """Keep the scores of a candidate that was published as `version`."""
        self._known.setdefault(version, {}).update(scores)
        while len(self._known) > _MAX_VERSIONS:
            self._known.popitem(last=False)

    def version_scores(
        self, version: int, load: Callable[[], nn.Module], traces: Sequence[Trace]
    ) -> Mapping[str, Score]:
        """Return the scores of a published version, computing those that are not known.

        Args:
            version: number.
            load: called only if something is to be computed.
            traces: to score on; scores of other traces are forgotten.
        """
        known = self._known.get(version, {})
        scores = {t.trace_id: known[t.trace_id] for t in traces if t.trace_id in known}
        unknown = [trace for trace in traces if trace.trace_id not in known]
        if unknown:
            scores |= self.score(load(), unknown)
        self._known[version] = scores
        self._known.move_to_end(version)
        self.remember(version, {})
        return scores


def compare(
    candidate: Mapping[str, Score],
    live: Mapping[str, Score] | None,
    *,
    live_version: int | None,
) -> Holdout | None:
    """Return both drafters on the traces that both were scored on; None if there are none."""
    ids = [trace_id for trace_id in candidate if live is None or trace_id in live]
    if not ids:
        return None
    tenants, routes = (tuple(getattr(candidate[i], name) for i in ids) for name in _LABELS)
    return Holdout(
        live_version=live_version,
        num_anchors=tuple(candidate[i].num_anchors for i in ids),
        candidate_accepted=tuple(candidate[i].accepted for i in ids),
        live_accepted=() if live is None else tuple(live[i].accepted for i in ids),
        tenants=tenants if any(tenants) else (),
        routes=routes if any(routes) else (),
    )
