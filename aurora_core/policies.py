"""The built-in swap policies. Pure: evidence in, verdict out; no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import ConfigDict, Field

from aurora_core.acceptance import acceptance_length
from aurora_core.interfaces import Options, SwapPolicy
from aurora_core.records import DraftVersion, Evidence, Holdout, Verdict


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


class HoldoutOptions(Options):
    """What a version must show on held-out traces."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    min_gain: float = 0.0
    """Gain in acceptance length over the live version that must be exceeded."""
    confidence: float = Field(0.9, gt=0.5, lt=1)
    """Confidence with which it must be exceeded, over resampled traces."""
    min_traces: int = Field(4, ge=1)
    """Held-out traces without which nothing is decided."""
    min_acceptance_length: float = Field(1.25, ge=1)
    """What a version needs when no drafter is live: below it, drafting costs more than it saves."""
    num_resamples: int = Field(2000, ge=100, le=100_000)
    """Bootstrap resamples of the traces."""
    seed: int = Field(0, ge=0)
    """Seed of the resampling."""


class HoldoutGate(SwapPolicy):
    """Promotes a version whose held-out acceptance length is surely better than the live one's.

    Both drafters were replayed on the same traces, so the gain is bootstrapped over pairs: traces
    that are easy or hard for both do not blur it. Without a live drafter, a version must reach
    the acceptance length from which drafting pays at all.
    """

    Config = HoldoutOptions

    def __init__(self, options: HoldoutOptions) -> None:
        super().__init__(options)
        self.options: HoldoutOptions = options

    def decide(self, evidence: Evidence) -> Verdict:
        """Promote or hold; the verdict's numbers are in acceptance length."""
        candidate, live = evidence.candidate, evidence.live
        version = f"version {candidate.version}"
        unfit = sorted(
            name for name, value in candidate.metrics.items() if not math.isfinite(value)
        )
        if unfit:
            return _hold(f"{version} has a {unfit[0]!r} of {candidate.metrics[unfit[0]]}")
        holdout = candidate.holdout
        if holdout is None:
            return _hold(f"{version} was not scored: there were no held-out traces yet")
        problem = _problem(holdout, live)
        if problem is not None:
            return _hold(f"{version} cannot be judged: {problem}")
        anchors = np.array(holdout.num_anchors, dtype=np.int64)
        scored = anchors > 0
        anchors = anchors[scored]
        if len(anchors) < self.options.min_traces:
            return _hold(
                f"{version} was scored on {len(anchors)} held-out traces, fewer than "
                f"{self.options.min_traces}",
                num_traces=float(len(anchors)),
            )
        accepted = _sums(holdout.candidate_accepted)[scored]
        if live is None:
            return self._judge_first(version, accepted, anchors)
        live_accepted = _sums(holdout.live_accepted)[scored]
        return self._judge_gain(candidate, live, accepted, live_accepted, anchors)

    def _judge_first(self, version: str, accepted: np.ndarray, anchors: np.ndarray) -> Verdict:
        length = acceptance_length(int(accepted.sum()), int(anchors.sum()))
        needed = self.options.min_acceptance_length
        enough = length >= needed
        return Verdict(
            action="promote" if enough else "hold",
            reason=(
                f"{version} has acceptance length {length:.2f} on {len(anchors)} held-out traces, "
                f"{'and' if enough else 'but'} drafting pays from {needed:.2f}"
            ),
            numbers={
                "candidate_acceptance_length": length,
                "min_acceptance_length": needed,
                "num_traces": float(len(anchors)),
                "num_anchors": float(anchors.sum()),
            },
        )

    def _judge_gain(
        self,
        candidate: DraftVersion,
        live: DraftVersion,
        accepted: np.ndarray,
        live_accepted: np.ndarray,
        anchors: np.ndarray,
    ) -> Verdict:
        options = self.options
        length = acceptance_length(int(accepted.sum()), int(anchors.sum()))
        live_length = acceptance_length(int(live_accepted.sum()), int(anchors.sum()))
        lower = gain_lower_bound(
            accepted - live_accepted,
            anchors,
            confidence=options.confidence,
            num_resamples=options.num_resamples,
            seed=options.seed,
        )
        enough = lower > options.min_gain
        return Verdict(
            action="promote" if enough else "hold",
            reason=(
                f"version {candidate.version} has acceptance length {length:.2f} on "
                f"{len(anchors)} held-out traces against {live_length:.2f} of version "
                f"{live.version}: the gain is at least {lower:+.3f} with {options.confidence:.0%} "
                f"confidence, {'above' if enough else 'not above'} {options.min_gain:g}"
            ),
            numbers={
                "candidate_acceptance_length": length,
                "live_acceptance_length": live_length,
                "gain": length - live_length,
                "gain_lower_bound": lower,
                "min_gain": options.min_gain,
                "num_traces": float(len(anchors)),
                "num_anchors": float(anchors.sum()),
            },
        )


def gain_lower_bound(
    gained: np.ndarray, anchors: np.ndarray, *, confidence: float, num_resamples: int, seed: int
) -> float:
    """Return a one-sided bootstrap bound of the gain in acceptance length, over whole traces.

    Args:
        gained: int64 [traces]. Accepted draft tokens of the candidate less those of the live one.
        anchors: int64 [traces]. Positions scored.
        confidence: probability with which the true gain lies above the bound.
        num_resamples: resamples of the traces, with replacement.
        seed: equal seeds give equal bounds.
    """
    # Resampling n traces is drawing how often each one occurs.
    num_traces = len(anchors)
    occurs = np.random.default_rng(seed).multinomial(
        num_traces, np.full(num_traces, 1 / num_traces), size=num_resamples
    )
    gains = (occurs @ gained) / (occurs @ anchors)
    return float(np.quantile(gains, 1 - confidence))


def _problem(holdout: Holdout, live: DraftVersion | None) -> str | None:
    """Return why a replay does not compare the candidate with what is live now, or None."""
    num_traces = len(holdout.num_anchors)
    live_version = live.version if live is not None else None
    if live_version is not None and holdout.live_version != live_version:
        other = "no drafter" if holdout.live_version is None else f"version {holdout.live_version}"
        return f"it was compared with {other}, but version {live_version} is live"
    columns = [holdout.candidate_accepted]
    if live_version is not None:
        columns.append(holdout.live_accepted)
    for accepted in columns:
        if len(accepted) != num_traces:
            return f"its replay has {len(accepted)} counts for {num_traces} traces"
        for anchors, counts in zip(holdout.num_anchors, accepted, strict=True):
            if any(not 0 <= count <= anchors for count in counts):
                return f"its replay accepted {max(counts)} drafts of one depth at {anchors} anchors"
    return None


def _sums(accepted: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([sum(counts) for counts in accepted], dtype=np.int64)


def _hold(reason: str, **numbers: float) -> Verdict:
    return Verdict(action="hold", reason=reason, numbers=numbers)
