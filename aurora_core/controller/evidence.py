"""What live traffic says about each draft version, over a recent window of requests."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aurora_core.controller.drift import PageHinkley
from aurora_core.controller.earlier_run import WINDOW_REQUESTS, read_recent_requests
from aurora_core.controller.serving_stats import (
    acceptance_length_of,
    as_shadowed,
    is_live,
    length_of,
    mean_otps,
    otps,
    serving_stats,
    version_of,
)
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    Drift,
    Evidence,
    RequestStats,
    ServingStats,
    SwapCost,
    SwapReceipt,
    SwitchedOff,
    Trial,
)

__all__ = [
    "LiveTraffic",
    "acceptance_length_of",
    "is_live",
    "mean_otps",
    "otps",
    "read_recent_requests",
    "version_of",
]

WINDOW_PER_VERSION = 200
"""Newest requests of one version that its figures rest on: traffic changes."""


_EARLIER = -1
"""Place of requests of an earlier run: before any swap of this one."""


@dataclass(frozen=True, slots=True)
class _RunningTrial:
    version: int
    share: float
    started: float
    first: int
    shadow: bool


class LiveTraffic:
    """Remembers recent requests and turns them into the evidence a swap policy looks at."""

    def __init__(
        self,
        *,
        started: float,
        window: int = WINDOW_REQUESTS,
        drift_threshold: float = 30.0,
    ) -> None:
        """
        Args:
            started: Unix seconds; the time of the last swap until there is one.
            window: requests to remember.
            drift_threshold: score from which a fall of acceptance counts as drift.
        """
        self._recent: deque[tuple[int, RequestStats]] = deque(maxlen=window)
        self._num_seen = 0
        self._last_swap, self._first_since_swap = started, 0
        self._num_tokens_since_swap = 0
        self._receipts: list[SwapReceipt] = []
        self._trial: _RunningTrial | None = None
        self._live_version = NO_DRAFTER
        self._first_drafted: int | None = None
        self._drift_threshold = drift_threshold
        self._drift: dict[str, PageHinkley] = {}
        self._earlier_swap = 0.0

    def remember(self, requests: Sequence[RequestStats], *, last_swap: float | None = None) -> None:
        """Take in requests of an earlier run: they tell about versions, and whether the acceptance
        of what is live falls; they count for nothing else.

        Args:
            requests: oldest first, before any that is observed, and before `serve_first`.
            last_swap: Unix seconds at which what is live went live; None if it always was.
        """
        self._recent.extend((_EARLIER, request) for request in requests)
        self._earlier_swap = last_swap or 0.0

    def observe(self, requests: Sequence[RequestStats]) -> None:
        """Take in finished requests, in order."""
        for request in requests:
            self._recent.append((self._num_seen, request))
            self._num_seen += 1
            self._num_tokens_since_swap += request.num_output_tokens
            self._watch(request)

    def swapped(self, now: float, receipt: SwapReceipt | None = None) -> None:
        """Start counting anew: another drafter serves from `now` on.

        Args:
            now: Unix seconds.
            receipt: what the swap cost; None if nothing was measured.
        """
        self._last_swap, self._first_since_swap = now, self._num_seen
        self._num_tokens_since_swap = 0
        self._drift.clear()
        if receipt is not None:
            if receipt.version != NO_DRAFTER and self._first_drafted is None:
                self._first_drafted = self._num_seen
            self._live_version = receipt.version
            if receipt.load_ms > 0 or receipt.stall_ms > 0:
                self._receipts.append(receipt)

    def serve_first(self, live: DraftVersion | None) -> None:
        """Say what is live when a run starts."""
        if live is not None:
            self._live_version, self._first_drafted = live.version, 0
            # A fall that began before a restart must not pass for what is normal after it.
            for _, request in self._recent:
                if request.finished >= self._earlier_swap:
                    self._watch(request)

    def begin_trial(self, version: int, share: float, now: float, *, shadow: bool = False) -> None:
        """A share of the requests goes to another version from `now` on, or is shadowed by it."""
        self._trial = _RunningTrial(version, share, now, self._num_seen, shadow)

    def end_trial(self) -> None:
        """No request goes to another version any more."""
        self._trial = None

    def evidence(
        self,
        candidate: DraftVersion,
        *,
        live: DraftVersion | None,
        previous: DraftVersion | None,
        now: float,
        waiting: DraftVersion | None = None,
        stored: tuple[int, ...] = (),
        can_route: bool = False,
        pinned: bool = False,
        switched_off: SwitchedOff | None = None,
    ) -> Evidence:
        """Return everything a policy may look at when it judges `candidate` at time `now`."""
        live_version = NO_DRAFTER if live is None else live.version
        since_swap = self._of(live_version, since=self._first_since_swap)
        return Evidence(
            candidate=candidate,
            live=live,
            previous=previous,
            serving=self.serving(),
            num_requests_since_swap=self._num_seen - self._first_since_swap,
            seconds_since_swap=now - self._last_swap,
            num_tokens_since_swap=self._num_tokens_since_swap,
            since_swap=serving_stats(live_version, since_swap) if since_swap else None,
            without_speculation=self.without_speculation(),
            swap_cost=self.swap_cost(),
            trial=self._running_trial(live_version, now),
            waiting=waiting,
            drift=self.drift(),
            stored=stored,
            can_route=can_route,
            pinned=pinned,
            switched_off=switched_off,
        )

    def serving(self) -> tuple[ServingStats, ...]:
        """Return recent traffic by version, `NO_DRAFTER` first.

        Requests that saw a swap belong to no version and are left out, as are aborted ones.
        """
        by_version: dict[int, list[RequestStats]] = defaultdict(list)
        for _, request in self._recent:
            version = version_of(request)
            if version is not None and _counts(request):
                by_version[version].append(request)
        return tuple(
            serving_stats(version, requests[-WINDOW_PER_VERSION:])
            for version, requests in sorted(by_version.items())
        )

    def without_speculation(self) -> ServingStats | None:
        """Return the standing estimate of speed without speculation, None without any.

        Requests before the first drafter do not count: the learner, which takes its share of the
        machine, waited for traces then.
        """
        if self._first_drafted is None:
            return None
        requests = self._of(NO_DRAFTER, since=self._first_drafted)[-WINDOW_PER_VERSION:]
        return serving_stats(NO_DRAFTER, requests) if requests else None

    def swap_cost(self) -> SwapCost | None:
        """Return what swaps cost so far, None before the first."""
        receipts = self._receipts
        if not receipts:
            return None
        return SwapCost(
            num_swaps=len(receipts),
            stall_s=sum(one.stall_ms for one in receipts) / len(receipts) / 1000,
            load_s=sum(one.load_ms for one in receipts) / len(receipts) / 1000,
        )

    def drift(self) -> tuple[Drift, ...]:
        """Return how far acceptance has fallen since the last swap, by tenant."""
        tenants = Counter(request.tenant for _, request in self._recent)
        return tuple(
            Drift(
                tenant=tenant,
                score=detector.score,
                threshold=self._drift_threshold,
                num_requests=detector.num_values,
                share=tenants[tenant] / len(self._recent),
            )
            for tenant, detector in sorted(self._drift.items())
            if detector.is_ready
        )

    def _watch(self, request: RequestStats) -> None:
        """Look for a fall of the acceptance, if the request is one of what is live."""
        if version_of(request) == self._live_version != NO_DRAFTER and _counts(request):
            self._drift.setdefault(request.tenant, PageHinkley()).observe(length_of(request))

    def _running_trial(self, live_version: int, now: float) -> Trial | None:
        trial = self._trial
        if trial is None:
            return None
        requests = (
            self._shadowed(trial) if trial.shadow else self._of(trial.version, since=trial.first)
        )
        return Trial(
            version=trial.version,
            share=trial.share,
            seconds=now - trial.started,
            challenger=serving_stats(trial.version, requests),
            live=serving_stats(live_version, self._of(live_version, since=trial.first)),
            shadow=trial.shadow,
        )

    def _shadowed(self, trial: _RunningTrial) -> list[RequestStats]:
        """Return the requests as they would have been with the version on trial."""
        return [
            as_shadowed(request)
            for index, request in self._recent
            if index >= trial.first
            and request.shadow is not None
            and request.shadow.version == trial.version
            and request.shadow.num_steps
            and _counts(request)
        ]

    def _of(self, version: int, *, since: int) -> list[RequestStats]:
        found: Iterable[RequestStats] = (
            request
            for index, request in self._recent
            if index >= since and version_of(request) == version and _counts(request)
        )
        return list(found)


def _counts(request: RequestStats) -> bool:
    return request.finish_reason != "abort"
