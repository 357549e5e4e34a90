"""What live traffic says about each draft version, over a recent window of requests."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from statistics import fmean

from aurora_core.acceptance import acceptance_length
from aurora_core.records import NO_DRAFTER, DraftVersion, Evidence, RequestStats, ServingStats

WINDOW_REQUESTS = 1000
"""Finished requests that count as recent traffic."""


class LiveTraffic:
    """Remembers recent requests and turns them into the evidence a swap policy looks at."""

    def __init__(self, *, started: float, window: int = WINDOW_REQUESTS) -> None:
        """
        Args:
            started: Unix seconds; the time of the last swap until there is one.
            window: requests to remember.
        """
        self._recent: deque[RequestStats] = deque(maxlen=window)
        self._last_swap = started
        self._num_requests_since_swap = 0

    def observe(self, requests: Sequence[RequestStats]) -> None:
        """Take in finished requests, in order."""
        self._recent.extend(requests)
        self._num_requests_since_swap += len(requests)

    def swapped(self, now: float) -> None:
        """Start counting anew: another drafter serves from `now` on."""
        self._last_swap, self._num_requests_since_swap = now, 0

    def evidence(
        self,
        candidate: DraftVersion,
        *,
        live: DraftVersion | None,
        previous: DraftVersion | None,
        now: float,
    ) -> Evidence:
        """Return everything a policy may look at when it judges `candidate` at time `now`."""
        return Evidence(
            candidate=candidate,
            live=live,
            previous=previous,
            serving=self.serving(),
            num_requests_since_swap=self._num_requests_since_swap,
            seconds_since_swap=now - self._last_swap,
        )

    def serving(self) -> tuple[ServingStats, ...]:
        """Return recent traffic by version, `NO_DRAFTER` first.

        Requests that saw a swap belong to no version and are left out, as are aborted ones.
        """
        by_version: dict[int, list[RequestStats]] = defaultdict(list)
        for request in self._recent:
            version = version_of(request)
            if version is not None and request.finish_reason != "abort":
                by_version[version].append(request)
        return tuple(
            ServingStats(
                version=version,
                num_requests=len(requests),
                num_output_tokens=sum(request.num_output_tokens for request in requests),
                acceptance_length=acceptance_length_of(requests),
                otps=mean_otps(requests),
            )
            for version, requests in sorted(by_version.items())
        )


def version_of(request: RequestStats) -> int | None:
    """Return the version that served a request, None when it saw a swap.

    Engines report plain steps as `NO_DRAFTER` even while a drafter is live, for example where no
    draft fits before the token limit. Such a request belongs to its drafter if most of its steps
    carried drafts.
    """
    oldest, newest = request.min_draft_version, request.max_draft_version
    if oldest == newest:
        return newest
    if oldest == NO_DRAFTER and 2 * request.num_speculative_steps > request.num_steps:
        return newest
    return None


def is_live(request: RequestStats, live_version: int) -> bool:
    """Return whether a request was served by whatever was live.

    The others are losslessness comparisons, the plain half of a measurement and whatever else
    asked for no speculation: they say nothing about the live drafter.

    Args:
        request: the finished request.
        live_version: version that was live then, `NO_DRAFTER` for none.
    """
    return request.max_draft_version != NO_DRAFTER or live_version == NO_DRAFTER


def acceptance_length_of(requests: Iterable[RequestStats]) -> float:
    """Return the acceptance length over all steps of some requests."""
    counts = [(sum(one.accepted_per_position), one.num_steps) for one in requests]
    return acceptance_length(sum(a for a, _ in counts), sum(steps for _, steps in counts))


def otps(request: RequestStats) -> float | None:
    """Return output tokens per second after the first token, None for too short an answer."""
    if request.num_output_tokens < 2 or request.decode_s <= 0:
        return None
    return (request.num_output_tokens - 1) / request.decode_s


def mean_otps(requests: Iterable[RequestStats]) -> float:
    """Return the mean over requests of their output tokens per second, 0.0 without any."""
    values = [value for request in requests if (value := otps(request)) is not None]
    return fmean(values) if values else 0.0
