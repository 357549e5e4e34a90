"""Swap policies that look at nothing but the calendar: for experiments, and to test swapping."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from aurora_core.interfaces import Options, SwapPolicy
from aurora_core.records import Evidence, Verdict


class AlwaysSwap(SwapPolicy):
    """Promotes every complete version at once: for experiments, and to test swapping itself."""

    def decide(self, evidence: Evidence) -> Verdict:
        """Promote."""
        version = evidence.candidate.version
        return Verdict(action="promote", reason=f"version {version} is complete")


class IntervalOptions(Options):
    """How long a version serves at least."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    min_requests: int = Field(0, ge=0)
    """Finished requests since the last swap."""
    min_seconds: float = Field(120.0, ge=0)
    """Seconds since the last swap."""


class IntervalSwap(SwapPolicy):
    """Promotes the newest version, but at most one per interval; a first version goes live."""

    Config = IntervalOptions

    def __init__(self, options: IntervalOptions) -> None:
        super().__init__(options)
        self.options: IntervalOptions = options

    def decide(self, evidence: Evidence) -> Verdict:
        """Promote if the live version has served long enough, or if none is live."""
        version, options = evidence.candidate.version, self.options
        num_requests, seconds = evidence.num_requests_since_swap, evidence.seconds_since_swap
        numbers = {"requests_since_swap": float(num_requests), "seconds_since_swap": seconds}
        if evidence.live is None:
            return Verdict(
                action="promote",
                reason=f"version {version} is complete and no drafter is live",
                numbers=numbers,
            )
        served = f"version {evidence.live.version} has served {num_requests} requests"
        if num_requests < options.min_requests:
            return Verdict(
                action="hold",
                reason=f"{served} of at least {options.min_requests}",
                numbers=numbers,
            )
        if seconds < options.min_seconds:
            return Verdict(
                action="hold",
                reason=f"{served} for {seconds:.0f} of at least {options.min_seconds:.0f} s",
                numbers=numbers,
            )
        return Verdict(
            action="promote",
            reason=f"version {version} is complete and {served} for {seconds:.0f} s",
            numbers=numbers,
        )
