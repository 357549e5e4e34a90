"""What live traffic said, as figures small enough to be logged with every verdict.

Means with their spread instead of single requests: two versions can be compared with confidence
from these, today or from the log of a run that ended long ago.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Mean and spread of one figure over requests."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0
    """Unbiased; 0 below two requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSlice:
    """A part of one version's traffic: of one batch-size bucket, or of one tenant and route."""

    length: Sample
    """Tokens per verification step of a request."""
    otps: Sample
    """Output tokens per second of a request; answers of one token have none."""
    step_s: float = 0.0
    """Mean seconds of a verification step; 0 when unknown."""
    batch_size: int = 0
    """Upper edge of the bucket, a power of two; 0 for a slice by label."""
    tenant: str = ""
    route: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStats:
    """Live traffic of one draft version, as far as it has been observed."""

    version: int
    """`NO_DRAFTER` for traffic without speculation."""
    num_requests: int
    num_output_tokens: int
    acceptance_length: float
    """1 + accepted / verification steps."""
    otps: float
    """Mean output tokens per second of a request."""
    acceptance_per_position: tuple[float, ...] = ()
    """Share of verification steps in which draft position k was accepted. [K]"""
    step_s: float = 0.0
    """Mean seconds of a verification step; 0 when unknown."""
    by_batch_size: tuple[TrafficSlice, ...] = ()
    by_label: tuple[TrafficSlice, ...] = ()
    """By tenant and route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCost:
    """Mean of what the swaps of this run cost."""

    num_swaps: int
    stall_s: float
    """Decoding stood still."""
    load_s: float
    """Reading and checking a version, beside serving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A version that serves a share of the requests, or drafts beside them, and what is live."""

    version: int
    share: float
    seconds: float
    """Since the trial began."""
    challenger: ServingStats
    live: ServingStats
    """What else finished in the same time, of the live version, or without a drafter if none is."""
    shadow: bool = False
    """Whether the version drafts in the shadow: its figures are what would have been, without
    speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Whether the acceptance length of the live version falls, for one tenant."""

    tenant: str
    score: float
    """Page-Hinkley statistic, in units of the acceptance length's spread; 0 without any fall."""
    threshold: float
    """From here on it counts as drift."""
    num_requests: int
    """Requests of the tenant that the score rests on."""
    share: float
    """Share of recent requests that are this tenant's, 0 to 1."""

    @property
    def is_alarm(self) -> bool:
        """Whether the score reached the threshold."""
        return self.score >= self.threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedOff:
    """Speculation is switched off because nothing beat decoding without it."""

    seconds: float
    num_times: int
    """Times in a row that it was switched off: each time it stays so for longer."""
