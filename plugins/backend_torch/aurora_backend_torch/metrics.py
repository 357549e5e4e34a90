"""Prometheus metrics of one engine process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aurora_core.lineages import shown_name

if TYPE_CHECKING:
    from aurora_core.records import BackendStatus, RequestStats, SwapReceipt

_LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
_STALL_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


_LINEAGE_COUNTERS = (
    ("", "requests", "Finished sequences by lineage."),
    ("num_output_tokens", "output_tokens", "Output tokens of finished requests by lineage."),
    ("num_steps", "verification_steps", "Verification steps by lineage, plain ones included."),
    ("num_drafted", "drafted_tokens", "Draft tokens proposed, by lineage."),
    ("decode_s", "decode_seconds", "Seconds from first to last token, by lineage, summed up."),
)
"""Field of the statistics, or nothing for one each; metric; what it says. Metrics of their own, so
that those without a label stay what they are."""


class ServerMetrics:
    """Counts what the server did. Used from the event loop only."""

    def __init__(
        self,
        read_status: Callable[[], BackendStatus],
        lineages: Mapping[str, Callable[[], BackendStatus]] | None = None,
    ) -> None:
        """Create the metrics in a registry of their own.

        Args:
            read_status: called at every scrape for the load and the live version.
            lineages: the same for every lineage, by its name.
        """
        self._registry = CollectorRegistry()
        self._registry.register(_StatusCollector(read_status, lineages or {}))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, registry=self._registry, buckets=buckets)

        self._requests = counter(
            "aurora_requests", "Finished sequences by finish reason.", "finish_reason"
        )
        self._refused = counter("aurora_refused_requests", "Refused requests by status.", "status")
        self._prompt_tokens = counter("aurora_prompt_tokens", "Prompt tokens of finished requests.")
        self._output_tokens = counter("aurora_output_tokens", "Output tokens of finished requests.")
        self._steps = counter(
            "aurora_verification_steps", "Verification steps, plain decoding steps included."
        )
        self._speculative_steps = counter(
            "aurora_speculative_steps", "Verification steps with at least one draft token."
        )
        self._drafted = counter("aurora_drafted_tokens", "Draft tokens proposed.")
        self._accepted = counter(
            "aurora_accepted_tokens", "Draft tokens accepted, by draft position from 1.", "position"
        )
        self._swaps = counter("aurora_swaps", "Swaps by result.", "result")
        self._stall = histogram(
            "aurora_swap_stall_seconds", "Time a swap kept decoding waiting.", _STALL_BUCKETS
        )
        self._ttft = histogram(
            "aurora_time_to_first_token_seconds", "Arrival to first token.", _LATENCY_BUCKETS
        )
        self._inter_token = histogram(
            "aurora_inter_token_seconds",
            "Seconds per output token: a step's tokens share the time since the step before.",
            _LATENCY_BUCKETS,
        )

        self._of_lineage = {
            field: counter(f"aurora_lineage_{name}", text, "lineage")
            for field, name, text in _LINEAGE_COUNTERS
        }
        self._lineage_accepted = counter(
            "aurora_lineage_accepted_tokens", "Draft tokens accepted, by lineage.", "lineage"
        )

    def finished(self, stats: RequestStats) -> None:
        """Count a finished sequence."""
        lineage = shown_name(stats.lineage)
        for field, one in self._of_lineage.items():
            one.labels(lineage).inc(getattr(stats, field) if field else 1)
        self._lineage_accepted.labels(lineage).inc(sum(stats.accepted_per_position))
        self._requests.labels(stats.finish_reason).inc()
        self._prompt_tokens.inc(stats.num_prompt_tokens)
        self._output_tokens.inc(stats.num_output_tokens)
        self._steps.inc(stats.num_steps)
        self._speculative_steps.inc(stats.num_speculative_steps)
        self._drafted.inc(stats.num_drafted)
        for position, accepted in enumerate(stats.accepted_per_position, start=1):
            self._accepted.labels(str(position)).inc(accepted)
        if stats.num_output_tokens:
            self._ttft.observe(stats.ttft_s)

    def refused(self, status: int) -> None:
        """Count a request that was answered with an error."""
        self._refused.labels(str(status)).inc()

    def step(self, elapsed_s: float, num_tokens: int) -> None:
        """Count a step's tokens, `elapsed_s` after the step before it."""
        for _ in range(num_tokens):
            self._inter_token.observe(elapsed_s / num_tokens)

    def swapped(self, receipt: SwapReceipt) -> None:
        """Count a swap that went through."""
        self._swaps.labels("done").inc()
        self._stall.observe(receipt.stall_ms / 1e3)

    def swap_refused(self) -> None:
        """Count a swap that kept the previous drafter."""
        self._swaps.labels("refused").inc()

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _StatusCollector(Collector):
    """Reads the engine's status when scraped."""

    def __init__(
        self,
        read_status: Callable[[], BackendStatus],
        lineages: Mapping[str, Callable[[], BackendStatus]],
    ) -> None:
        self._read_status, self._lineages = read_status, lineages

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not ask the engine."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        status = self._read_status()
        for name, text, value in (
            ("aurora_running_requests", "Requests being decoded.", status.num_running),
            ("aurora_waiting_requests", "Requests in the queue.", status.num_waiting),
            ("aurora_live_version", "Live draft version, -1 for none.", status.live_version),
            ("aurora_memory_bytes", "Resident memory.", status.memory_mib * 2**20),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        live = GaugeMetricFamily(
            "aurora_lineage_live_version",
            "Live draft version by lineage, -1 for none.",
            labels=["lineage"],
        )
        for lineage, read in self._lineages.items():
            live.add_metric([shown_name(lineage)], read().live_version)
        yield live
        for name, text, value in (
            ("aurora_traces_kept", "Traces handed to the sink.", status.traces_kept),
            ("aurora_traces_shed", "Traces shed.", status.traces_shed),
        ):
            yield CounterMetricFamily(name, text, value=value)
