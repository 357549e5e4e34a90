"""Curves of a run of any length in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

from aurora_core.acceptance import acceptance_length
from aurora_core.controller.evidence import is_live, otps, version_of
from aurora_core.records import NO_DRAFTER, RequestStats


@dataclass
class RequestBin:
    """Sums over consecutive requests; two neighbours add up to their union."""

    num_requests: int = 0
    num_live: int = 0
    """Requests served by whatever was live; the others were asked for without speculation."""
    accepted: int = 0
    """Draft tokens accepted in live requests."""
    num_steps: int = 0
    """Verification steps of live requests."""
    live_otps_sum: float = 0.0
    live_otps_count: int = 0
    plain_otps_sum: float = 0.0
    """Output tokens per second without a drafter, summed over requests."""
    plain_otps_count: int = 0
    staleness_sum: int = 0

    def add(self, request: RequestStats, *, live_version: int, newest_version: int) -> None:
        """Count one request in."""
        plain = request.max_draft_version == NO_DRAFTER
        speed = otps(request)
        self.num_requests += 1
        if plain and speed is not None:
            self.plain_otps_sum += speed
            self.plain_otps_count += 1
        if not is_live(request, live_version):
            return
        self.num_live += 1
        self.accepted += sum(request.accepted_per_position)
        self.num_steps += request.num_steps
        served = version_of(request)
        self.staleness_sum += newest_version - max(
            request.min_draft_version if served is None else served, 0
        )
        if speed is not None:
            self.live_otps_sum += speed
            self.live_otps_count += 1

    def merge(self, other: RequestBin) -> None:
        """Add another bin to this one."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / steps of live requests; None without any."""
        return acceptance_length(self.accepted, self.num_steps) if self.num_steps else None

    @property
    def live_otps(self) -> float | None:
        """Mean output tokens per second of live requests."""
        return self.live_otps_sum / self.live_otps_count if self.live_otps_count else None

    @property
    def plain_otps(self) -> float | None:
        """The same for requests without speculation."""
        return self.plain_otps_sum / self.plain_otps_count if self.plain_otps_count else None

    @property
    def staleness(self) -> float | None:
        """Mean of newest published version minus the version that served."""
        return self.staleness_sum / self.num_live if self.num_live else None


class RequestSeries:
    """Requests in order, in at most `max_bins` bins of equal size; the size doubles when full."""

    def __init__(self, max_bins: int = 1024) -> None:
        self.bins: list[RequestBin] = []
        self.bin_size = 1
        self._max_bins = max_bins

    def add(self, request: RequestStats, *, live_version: int, newest_version: int) -> None:
        """Append a request.

        Args:
            request: the finished request.
            live_version: version live when it was seen; tells comparisons from live traffic.
            newest_version: newest published version by then, 0 before the first.
        """
        if not self.bins or self.bins[-1].num_requests >= self.bin_size:
            if len(self.bins) >= self._max_bins:
                self._double()
            self.bins.append(RequestBin())
        self.bins[-1].add(request, live_version=live_version, newest_version=newest_version)

    def _double(self) -> None:
        self.bin_size *= 2
        for first, second in zip(self.bins[::2], self.bins[1::2], strict=False):
            first.merge(second)
        self.bins = self.bins[::2]

    def windows(self, num_windows: int) -> list[tuple[float, RequestBin]]:
        """Return up to `num_windows` windows as (requests before its middle, sums)."""
        per_window = -(-len(self.bins) // num_windows) if self.bins else 1
        windows: list[tuple[float, RequestBin]] = []
        before = 0
        for start in range(0, len(self.bins), per_window):
            window = RequestBin()
            for item in self.bins[start : start + per_window]:
                window.merge(item)
            windows.append((before + window.num_requests / 2, window))
            before += window.num_requests
        return windows


class ScalarSeries:
    """Points (x, y) by growing x, thinned to every second one whenever there are too many."""

    def __init__(self, max_points: int = 2048) -> None:
        self.points: list[tuple[float, float]] = []
        self._max_points = max_points
        self._stride = 1
        self._seen = 0

    def add(self, x: float, y: float) -> None:
        """Append a point; one further back replaces everything from there on, as a learner that
        resumes from a checkpoint does its lost steps again."""
        while self.points and self.points[-1][0] >= x:
            self.points.pop()
        if self._seen % self._stride == 0:
            self.points.append((x, y))
        self._seen += 1
        if len(self.points) > self._max_points:
            self.points = self.points[::2]
            self._stride *= 2
