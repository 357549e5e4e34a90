"""The course of a run, remembered through the same hooks that any plugin can use."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass

from aurora_core import hookimpl
from aurora_core.acceptance import per_position, sum_per_position
from aurora_core.controller.evidence import acceptance_length_of, is_live
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    Evidence,
    RequestStats,
    SwapReceipt,
    Verdict,
)
from aurora_core.report.series import RequestSeries, ScalarSeries

FIRST_WINDOW_REQUESTS = 32
"""Requests behind `acceptance_length.first`."""

_KEPT_EVENTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapEvent:
    """A drafter that went live, and when."""

    num_requests: int
    """Requests finished before it."""
    version: int
    previous: int
    receipt: SwapReceipt


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedVersion:
    """A verdict, and when."""

    num_requests: int
    version: int
    action: str
    reason: str


class History:
    """Collects what the report shows. Register it as a plugin for the length of one run."""

    def __init__(self, live_version: int = NO_DRAFTER, newest_version: int = 0) -> None:
        self.requests = RequestSeries()
        self.loss = ScalarSeries()
        """Optimizer steps -> training loss."""
        self.trained_staleness = ScalarSeries()
        """Finished requests -> staleness of the traces that are learned from."""
        self.swaps: deque[SwapEvent] = deque(maxlen=_KEPT_EVENTS)
        self.verdicts: deque[JudgedVersion] = deque(maxlen=_KEPT_EVENTS)
        self.published: deque[DraftVersion] = deque(maxlen=_KEPT_EVENTS)
        self.verdict_counts: Counter[str] = Counter()
        self.num_swaps = 0
        self.num_requests = 0
        self.num_aborted_requests = 0
        """Requests that ended because their client went away, or a step of the engine failed."""
        self.num_failed_requests = 0
        """Requests that ended for no reason of their own and none of their client's."""
        self.learner_metrics: dict[str, float] = {}
        self.first_requests: list[RequestStats] = []
        """The first live requests, behind `acceptance_length.first`."""
        self.last_requests: deque[RequestStats] = deque(maxlen=200)
        """The last live requests."""
        self._live_version = live_version
        self._newest_version = newest_version

    @hookimpl
    def aurora_requests_finished(self, requests: list[RequestStats]) -> None:
        for request in requests:
            self.requests.add(
                request, live_version=self._live_version, newest_version=self._newest_version
            )
            reason = request.finish_reason
            self.num_aborted_requests += reason == "abort"
            self.num_failed_requests += reason not in ("stop", "length", "abort")
            if is_live(request, self._live_version):
                self.last_requests.append(request)
                if len(self.first_requests) < FIRST_WINDOW_REQUESTS:
                    self.first_requests.append(request)
        self.num_requests += len(requests)

    @hookimpl
    def aurora_learner_progress(self, step: int, metrics: dict[str, float]) -> None:
        self.learner_metrics.update(metrics)
        loss = metrics.get("train/loss")
        if loss is not None and math.isfinite(loss):
            self.loss.add(step, loss)
        staleness = metrics.get("train/staleness")
        if staleness is not None and math.isfinite(staleness):
            self.trained_staleness.add(self.num_requests, staleness)

    @hookimpl
    def aurora_draft_published(self, draft: DraftVersion) -> None:
        self.published.append(draft)
        self._newest_version = max(self._newest_version, draft.version)

    @hookimpl
    def aurora_swap_decided(
        self, draft: DraftVersion, verdict: Verdict, evidence: Evidence
    ) -> None:
        self.verdict_counts[verdict.action] += 1
        self.verdicts.append(
            JudgedVersion(
                num_requests=self.num_requests,
                version=draft.version,
                action=verdict.action,
                reason=verdict.reason,
            )
        )

    @hookimpl
    def aurora_draft_swapped(
        self, draft: DraftVersion | None, previous: DraftVersion | None, receipt: SwapReceipt
    ) -> None:
        self.num_swaps += 1
        self._live_version = receipt.version
        self.swaps.append(
            SwapEvent(
                num_requests=self.num_requests,
                version=receipt.version,
                previous=NO_DRAFTER if previous is None else previous.version,
                receipt=receipt,
            )
        )

    @property
    def first_acceptance_length(self) -> float | None:
        """Acceptance length over the first live requests, None without any."""
        return acceptance_length_of(self.first_requests) if self.first_requests else None

    @property
    def last_acceptance_length(self) -> float | None:
        """Acceptance length over the last live requests, None without any."""
        return acceptance_length_of(self.last_requests) if self.last_requests else None

    @property
    def last_acceptance_per_position(self) -> tuple[float, ...]:
        """Share of steps in which each draft position was accepted, over the last live requests."""
        requests = self.last_requests
        accepted = sum_per_position(one.accepted_per_position for one in requests)
        return per_position(accepted, sum(one.num_steps for one in requests))
