"""A judge that lets the candidate serve a share of the requests and compares while it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field

from aurora_core.acceptance import holdout_acceptance_length
from aurora_core.confidence import (
    Interval,
    bootstrap_acceptance,
    match_strata,
    resample,
    sequential_ratio,
)
from aurora_core.interfaces import Options, SwapPolicy
from aurora_core.policies.gate import cannot_compare, unfit
from aurora_core.records import DraftVersion, Evidence, Holdout, Trial, Verdict

_OUTDONE_BY = 1.05
"""Ratio of held-out acceptance lengths for which a trial is given up: for less, a learner that gets
better all the time would never let one finish."""


class CanaryOptions(Options):
    """How many requests a candidate serves, and what it must show."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    share: float = Field(0.1, gt=0, le=0.5)
    """Share of the requests that the candidate serves."""
    min_requests: int = Field(8, ge=2)
    """Requests on either side before anything is decided."""
    max_requests: int = Field(100, ge=2)
    """Requests of the candidate after which it is dropped if it is not surely better."""
    measure: Literal["acceptance_length", "otps"] = "acceptance_length"
    """What is compared. Versions of one lineage cost the same per step, and the acceptance length
    is less noisy than the speed; against no drafter it is always the speed."""
    min_gain: float = Field(0.0, ge=0)
    """Gain over what is live that must be exceeded, as a share: 0.02 is 2 %."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Confidence with which it must be exceeded, over all looks together."""
    min_acceptance_length: float = Field(1.25, ge=1)
    """Held-out acceptance length below which a version is not tried while no drafter is live."""


class CanarySwap(SwapPolicy):
    """Promotes a version that is surely better on live requests, and drops any other.

    Requests are drawn at random, so both sides see the same traffic at the same time. The test is
    sequential: it may be looked at after every request.
    """

    Config: ClassVar[type[Options]] = CanaryOptions
    needs_routing = True
    trial_action: Literal["canary", "shadow"] = "canary"
    """How a candidate is tried."""
    _does, _done, _makes = "serves", "served", "makes"

    def __init__(self, options: CanaryOptions) -> None:
        super().__init__(options)
        self.options: CanaryOptions = options

    def decide(self, evidence: Evidence) -> Verdict:
        """Begin a trial, go on with it, promote or drop."""
        candidate, live, trial = evidence.candidate, evidence.live, evidence.trial
        version = f"version {candidate.version}"
        if live is not None and candidate.version == live.version:
            return Verdict(action="hold", reason=f"{version} is live")
        problem = unfit(candidate)
        if problem is not None:
            return Verdict(action="drop", reason=problem)
        if trial is None or trial.version != candidate.version or trial.shadow != self._is_shadow:
            worse = self._hopeless(evidence) or _surely_worse(evidence)
            if worse is not None:
                return worse
            return self._go_on(
                f"{version} {self._does} {self.options.share:.0%} of the requests on trial"
            )
        return self._outdone(evidence) or self._judge(evidence, trial)

    @property
    def _is_shadow(self) -> bool:
        return self.trial_action == "shadow"

    def _go_on(self, reason: str, numbers: Mapping[str, float] | None = None) -> Verdict:
        return Verdict(
            action=self.trial_action,
            reason=reason,
            numbers=numbers or {},
            share=self.options.share,
        )

    def _compared(self, live: DraftVersion | None) -> tuple[str, float]:
        """Return what is compared, and the gain over what is live that must be exceeded."""
        return "otps" if live is None else self.options.measure, self.options.min_gain

    def _hopeless(self, evidence: Evidence) -> Verdict | None:
        """Spare live requests the first versions of a lineage, which have learned too little."""
        holdout, needed = evidence.candidate.holdout, self.options.min_acceptance_length
        if evidence.live is not None or holdout is None or not any(holdout.num_anchors):
            return None
        length = holdout_acceptance_length(holdout.num_anchors, holdout.candidate_accepted)
        if length >= needed:
            return None
        return Verdict(
            action="drop",
            reason=f"version {evidence.candidate.version} has acceptance length {length:.2f} on "
            f"held-out traces, and is not tried below {needed:.2f}",
            numbers={"candidate_acceptance_length": length, "min_acceptance_length": needed},
        )

    def _outdone(self, evidence: Evidence) -> Verdict | None:
        """End the trial of a version that a newer one surely surpasses: requests are dear."""
        candidate, waiting = evidence.candidate, evidence.waiting
        if waiting is None or unfit(waiting) is not None:
            return None
        ours, theirs = (_held_out_length(one.holdout) for one in (candidate, waiting))
        if ours is None or theirs is None or theirs.lower <= _OUTDONE_BY * ours.upper:
            return None
        return Verdict(
            action="drop",
            reason=f"version {waiting.version} has acceptance length {theirs.estimate:.2f} on "
            f"held-out traces against {ours.estimate:.2f} of version {candidate.version}, surely "
            "more: it is tried instead",
            numbers={
                "candidate_upper_bound": ours.upper,
                "waiting_lower_bound": theirs.lower,
            },
        )

    def _judge(self, evidence: Evidence, trial: Trial) -> Verdict:
        options, live = self.options, evidence.live
        version = f"version {trial.version}"
        against = "no drafter" if live is None else f"version {live.version}"
        measure, min_gain = self._compared(live)
        num_requests = trial.challenger.num_requests
        numbers = {
            "trial_requests": float(num_requests),
            "live_requests": float(trial.live.num_requests),
            "min_gain": min_gain,
        }
        if gets_no_requests(trial):
            return Verdict(
                action="drop",
                reason=f"{version} has {self._done} none of {trial.live.num_requests} requests on "
                "trial: the engine let go of it, as it does when a drafter fails",
                numbers=numbers,
            )
        found = compare_trial(trial, measure=measure, confidence=options.confidence)
        fewest = min(num_requests, trial.live.num_requests)
        if found is None or fewest < options.min_requests:
            return self._go_on(
                f"{version} has {self._done} {num_requests} requests on trial beside "
                f"{trial.live.num_requests} of {against}, too few to tell",
                numbers,
            )
        numbers |= {
            "gain": found.estimate - 1,
            "gain_lower_bound": found.lower - 1,
            "gain_upper_bound": found.upper - 1,
        }
        what = "tokens per second" if measure == "otps" else "tokens per step"
        reason = (
            f"{version} {self._makes} {found.estimate - 1:+.1%} {what} against {against} in "
            f"{num_requests} requests, between {found.lower - 1:+.1%} and {found.upper - 1:+.1%} "
            f"with {options.confidence:.0%} confidence"
        )
        if found.lower - 1 > min_gain:
            return Verdict(action="promote", reason=reason, numbers=numbers)
        if found.upper - 1 <= min_gain:
            reason += f", never above {min_gain:.0%}"
            return Verdict(action="drop", reason=reason, numbers=numbers)
        if num_requests >= options.max_requests:
            reason += f": not surely better in {options.max_requests} requests"
            return Verdict(action="drop", reason=reason, numbers=numbers)
        return self._go_on(reason, numbers)


def gets_no_requests(trial: Trial) -> bool:
    """Return whether chance cannot explain that the version on trial served nothing."""
    others = 1.0 if trial.shadow else 1 - trial.share
    expected = trial.live.num_requests * trial.share / others
    return trial.challenger.num_requests == 0 and expected > 20


def compare_trial(trial: Trial, *, measure: str, confidence: float) -> Interval | None:
    """Return challenger / live with bounds that hold at every look; None before there is any.

    Args:
        trial: the running one.
        measure: `otps`, compared at equal batch sizes, or `acceptance_length`, compared at equal
            tenant and route.
        confidence: two-sided.
    """
    if measure == "otps":
        pairs = match_strata(trial.challenger.by_batch_size, trial.live.by_batch_size, "otps")
    else:
        pairs = match_strata(trial.challenger.by_label, trial.live.by_label, "length")
    return sequential_ratio(pairs, confidence=confidence)


def _held_out_length(holdout: Holdout | None) -> Interval | None:
    """Return the acceptance length of a candidate's replay, with 90 % confidence over traces."""
    if holdout is None or np.count_nonzero(holdout.num_anchors) < 4:
        return None
    sums = [[sum(counts)] for counts in holdout.candidate_accepted]
    [found] = bootstrap_acceptance(holdout.num_anchors, sums)
    return Interval(*(1 + bound for bound in found))


def _surely_worse(evidence: Evidence) -> Verdict | None:
    """Spare live requests a candidate that is worse on held-out traces already."""
    candidate, live = evidence.candidate, evidence.live
    holdout = candidate.holdout
    if holdout is None or live is None or cannot_compare(holdout, live) is not None:
        return None
    anchors = np.array(holdout.num_anchors, dtype=np.int64)
    if np.count_nonzero(anchors) < 4:
        return None
    gained = np.array(holdout.candidate_accepted).sum(1) - np.array(holdout.live_accepted).sum(1)
    occurs = resample(len(anchors), num_resamples=2000, seed=0)
    scored = occurs @ anchors
    upper = float(np.quantile((occurs @ gained)[scored > 0] / scored[scored > 0], 0.95))
    if upper >= 0:
        return None
    return Verdict(
        action="drop",
        reason=f"version {candidate.version} accepts {-upper:.3f} tokens per step less than "
        f"version {live.version} on held-out traces, at best, with 95% confidence",
        numbers={"gain_upper_bound": upper},
    )
