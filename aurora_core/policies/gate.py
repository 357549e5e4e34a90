"""The default judge: a version must be better on held-out traces, by enough to pay its swap."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import ConfigDict, Field

from aurora_core.acceptance import acceptance_length
from aurora_core.confidence import resample
from aurora_core.interfaces import Options, SwapPolicy
from aurora_core.records import NO_DRAFTER, DraftVersion, Evidence, Holdout, SwapCost, Verdict


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
    """What a version needs when no drafter is live: below it, drafting costs more than it saves.
    A break-even that was measured on this machine counts instead where it is higher."""
    horizon_s: float = Field(300.0, gt=0)
    """Seconds over which a gain in speed must pay for the swap."""
    load_slowdown: float = Field(0.5, ge=0, le=1)
    """Share of its speed that the engine is taken to lose while it loads a version."""
    num_resamples: int = Field(2000, ge=100, le=100_000)
    """Bootstrap resamples of the traces."""
    seed: int = Field(0, ge=0)
    """Seed of the resampling."""


class HoldoutGate(SwapPolicy):
    """Promotes a version whose held-out acceptance length is surely better than the live one's.

    Both drafters were replayed on the same traces, so the gain is bootstrapped over pairs: traces
    that are easy or hard for both do not blur it. Versions of one lineage cost the same per step,
    so a ratio of acceptance lengths is a ratio of output tokens per second: its lower bound must
    save more seconds over the horizon than the swap costs. Without a live drafter, a version must
    reach the acceptance length from which drafting pays at all.
    """

    Config = HoldoutOptions

    def __init__(self, options: HoldoutOptions) -> None:
        super().__init__(options)
        self.options: HoldoutOptions = options

    def decide(self, evidence: Evidence) -> Verdict:
        """Promote or hold; the verdict's numbers are in acceptance length."""
        candidate, live = evidence.candidate, evidence.live
        version = f"version {candidate.version}"
        problem = unfit(candidate)
        if problem is not None:
            return _hold(problem)
        holdout = candidate.holdout
        if holdout is None:
            return _hold(f"{version} was not scored: there were no held-out traces yet")
        problem = cannot_compare(holdout, live)
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
            return self._judge_first(version, accepted, anchors, measured=break_even(evidence))
        live_accepted = _sums(holdout.live_accepted)[scored]
        return self._judge_gain(evidence, live, accepted, live_accepted, anchors)

    def _judge_first(
        self, version: str, accepted: np.ndarray, anchors: np.ndarray, *, measured: float | None
    ) -> Verdict:
        length = acceptance_length(int(accepted.sum()), int(anchors.sum()))
        needed = max(self.options.min_acceptance_length, measured or 1.0)
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
        evidence: Evidence,
        live: DraftVersion,
        accepted: np.ndarray,
        live_accepted: np.ndarray,
        anchors: np.ndarray,
    ) -> Verdict:
        options, candidate = self.options, evidence.candidate
        length = acceptance_length(int(accepted.sum()), int(anchors.sum()))
        live_length = acceptance_length(int(live_accepted.sum()), int(anchors.sum()))
        lower = gain_lower_bound(
            accepted - live_accepted,
            anchors,
            confidence=options.confidence,
            num_resamples=options.num_resamples,
            seed=options.seed,
        )
        speed = 1 + lower / live_length
        saved_s = options.horizon_s * (1 - 1 / speed) if speed > 0 else -options.horizon_s
        cost_s = swap_seconds(evidence.swap_cost, load_slowdown=options.load_slowdown)
        enough, pays = lower > options.min_gain, saved_s > cost_s
        reason = (
            f"version {candidate.version} has acceptance length {length:.2f} on "
            f"{len(anchors)} held-out traces against {live_length:.2f} of version "
            f"{live.version}: the gain is at least {lower:+.3f} with {options.confidence:.0%} "
            f"confidence, {'above' if enough else 'not above'} {options.min_gain:g}"
        )
        if enough:
            reason += (
                f"; in {options.horizon_s:.0f} s that saves {saved_s:.2f} s of decoding, "
                f"{'and' if pays else 'but'} a swap costs {cost_s:.2f} s"
            )
        numbers = {
            "candidate_acceptance_length": length,
            "live_acceptance_length": live_length,
            "gain": length - live_length,
            "gain_lower_bound": lower,
            "min_gain": options.min_gain,
            "saved_s": saved_s,
            "swap_cost_s": cost_s,
            "num_traces": float(len(anchors)),
            "num_anchors": float(anchors.sum()),
        }
        numbers |= gain_by_label(candidate.holdout)
        served = evidence.since_swap
        if served is not None and served.otps:
            numbers["otps_gain_lower_bound"] = served.otps * (speed - 1)
        return Verdict(
            action="promote" if enough and pays else "hold", reason=reason, numbers=numbers
        )


def gain_by_label(holdout: Holdout | None) -> dict[str, float]:
    """Return the gain in acceptance length by tenant and route, where traces carry several."""
    if holdout is None or not holdout.live_accepted:
        return {}
    labels = [
        "/".join(part for part in label if part) or "unlabelled"
        for label in zip(
            holdout.tenants or [""] * len(holdout.num_anchors),
            holdout.routes or [""] * len(holdout.num_anchors),
            strict=True,
        )
    ]
    if len(set(labels)) < 2:
        return {}
    gained = _sums(holdout.candidate_accepted) - _sums(holdout.live_accepted)
    anchors = np.array(holdout.num_anchors, dtype=np.int64)
    gains = {}
    for label in sorted(set(labels)):
        of_label = np.array([one == label for one in labels])
        if scored := int(anchors[of_label].sum()):
            gains[f"gain_at_{label}"] = float(gained[of_label].sum() / scored)
    return gains


def swap_seconds(cost: SwapCost | None, *, load_slowdown: float) -> float:
    """Return the seconds of decoding that a swap is worth; 0.0 before any was measured."""
    return 0.0 if cost is None else cost.stall_s + load_slowdown * cost.load_s


def break_even(evidence: Evidence) -> float | None:
    """Return the acceptance length from which drafting pays, None before it was measured.

    It is how many times longer a step with drafts takes than one without, at the batch sizes that
    were served both ways.
    """
    plain = {
        one.batch_size: one.step_s
        for stats in evidence.serving
        if stats.version == NO_DRAFTER
        for one in stats.by_batch_size
        if one.step_s > 0
    }
    ratios = [
        (one.step_s / plain[one.batch_size], one.length.count)
        for stats in evidence.serving
        if stats.version != NO_DRAFTER
        for one in stats.by_batch_size
        if one.step_s > 0 and one.batch_size in plain
    ]
    total = sum(count for _, count in ratios)
    return sum(ratio * count for ratio, count in ratios) / total if total else None


def unfit(candidate: DraftVersion) -> str | None:
    """Return why no version with such metrics may serve, None if they are finite numbers."""
    names = sorted(name for name, value in candidate.metrics.items() if not math.isfinite(value))
    if not names:
        return None
    return f"version {candidate.version} has a {names[0]!r} of {candidate.metrics[names[0]]}"


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
    occurs = resample(len(anchors), num_resamples=num_resamples, seed=seed)
    gains = (occurs @ gained) / (occurs @ anchors)
    return float(np.quantile(gains, 1 - confidence))


def cannot_compare(holdout: Holdout, live: DraftVersion | None) -> str | None:
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
