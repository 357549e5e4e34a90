"""What stands around every swap policy, so that no verdict of it makes serving worse for long.

    a person pinned the live version   hold, whatever the policy says
    speculation is switched off        try again by a share of the requests, after a while
    the live version is reviewed       probation -> roll back; slower than no drafter, or next to
                                       nothing accepted -> switch off;
                                       drift -> back to a stored version that did better
    anything else                      the policy's own verdict

Pure like the policy itself, so that `aurora explain` replays both from the log.
"""

from __future__ import annotations

from aurora_core.confidence import Interval, match_strata, sequential_ratio
from aurora_core.config import GuardSection
from aurora_core.interfaces import Options, SwapPolicy
from aurora_core.policies.canary import compare_trial, gets_no_requests
from aurora_core.policies.gate import unfit
from aurora_core.records import (
    NO_DRAFTER,
    Drift,
    Evidence,
    Sample,
    ServingStats,
    Trial,
    Verdict,
)

_LEAST_PLAIN_REQUESTS = 3
"""Without a drafter every step makes one token: their speed hardly differs."""
_LONGEST_COOLDOWN_S = 3600.0
_LEAST_LOOKED_AT = 3
"""Requests of hundreds of steps with drafts in each, of which next to none was accepted."""
_ONE_TOKEN = Sample(count=10**9, mean=1.0)
"""Tokens per step without drafts, which are known exactly."""


class Guard(SwapPolicy):
    """A swap policy with probation, a way back and a way out."""

    def __init__(self, policy: SwapPolicy, options: GuardSection) -> None:
        """
        Args:
            policy: judges candidates.
            options: the section `guard` of the configuration.
        """
        super().__init__(Options())
        self.policy, self.guard = policy, options
        self.needs_routing = policy.needs_routing
        self.needs_shadow = policy.needs_shadow

    def decide(self, evidence: Evidence) -> Verdict:
        """Judge a candidate, or review the live version when that is the candidate."""
        candidate, live = evidence.candidate, evidence.live
        if evidence.pinned:
            what = "no drafter" if live is None else f"version {live.version}"
            return Verdict(
                action="hold",
                reason=f"{what} was made live by a person and stays until `aurora promote --auto`",
            )
        if evidence.switched_off is not None and live is None:
            return self._try_again(evidence)
        if live is not None and candidate.version == live.version:
            verdict = self._review(evidence) or self._after_drift(evidence)
            if verdict is not None:
                return verdict
        return self.policy.decide(evidence)

    def _review(self, evidence: Evidence) -> Verdict | None:
        """Switch off or roll back.

        A version that took over from a better one gives way to that one: switched off, it would be
        the bad one that is tried again. What was rolled back to has no version before it, so that
        two that are both bad do not take turns.
        """
        off = self._accepts_nothing(evidence) or self._too_slow(evidence)
        if off is None:
            return self._probation(evidence)
        if evidence.previous is None:
            return off
        return self._probation(evidence, goes_anyway=True) or off

    def _accepts_nothing(self, evidence: Evidence) -> Verdict | None:
        """Switch speculation off where drafts that cost nothing would bring nothing either.

        A step with drafts never takes less time than one without, so tokens per step bound the
        speed-up from above, and no request without speculation is needed to know.
        """
        options, live = self.guard, evidence.since_swap
        if not options.disable_speculation or live is None:
            return None
        found = self._surely_idle(live)
        if found is None:
            return None
        return Verdict(
            action="disable_speculation",
            reason=f"version {live.version} {_makes_next_to_nothing(found, options, live)}",
            numbers=_bounds("accepted", found),
        )

    def _surely_idle(self, stats: ServingStats) -> Interval | None:
        """Return the tokens per step of a drafter that are surely too few to be worth drafting."""
        if stats.num_requests < _LEAST_LOOKED_AT:
            return None
        pairs = [(one.length, _ONE_TOKEN) for one in stats.by_label]
        found = sequential_ratio(pairs, confidence=self.guard.confidence)
        if found is None or found.upper >= self.guard.min_acceptance_length:
            return None
        return found

    def _too_slow(self, evidence: Evidence) -> Verdict | None:
        """Switch speculation off where decoding without it is surely faster."""
        options, live, plain = self.guard, evidence.since_swap, evidence.without_speculation
        if not options.disable_speculation or live is None or plain is None:
            return None
        if live.num_requests < options.min_requests or plain.num_requests < _LEAST_PLAIN_REQUESTS:
            return None
        pairs = match_strata(live.by_batch_size, plain.by_batch_size, "otps")
        found = sequential_ratio(pairs, confidence=options.confidence)
        if found is None or found.upper >= 1:
            return None
        return Verdict(
            action="disable_speculation",
            reason=f"version {live.version} makes {found.estimate - 1:+.1%} output tokens per "
            f"second against no speculation at equal batch sizes, at best "
            f"{found.upper - 1:+.1%} with {options.confidence:.0%} confidence, over "
            f"{live.num_requests} requests beside {plain.num_requests}",
            numbers={
                **_bounds("speedup", found),
                "live_otps": live.otps,
                "otps_without_speculation": plain.otps,
            },
        )

    def _probation(self, evidence: Evidence, *, goes_anyway: bool = False) -> Verdict | None:
        """Roll back a new version that accepts surely less than the best one before it.

        Args:
            evidence: of a review.
            goes_anyway: it is surely not worth drafting with; then the better one need not be
                surely better.
        """
        options, live = self.guard, evidence.since_swap
        min_requests = _LEAST_LOOKED_AT if goes_anyway else options.min_requests
        if live is None or live.num_requests < min_requests:
            return None
        if evidence.num_requests_since_swap > options.probation_requests:
            return None
        before = _best_other(evidence, live, options.min_requests)
        if before is None:
            return None
        found = compare_lengths(live, before, confidence=options.confidence)
        if found is None:
            return None
        if (found.estimate if goes_anyway else found.upper) >= 1 - options.max_loss:
            return None
        return Verdict(
            action="roll_back",
            version=before.version,
            reason=f"version {live.version} on probation makes {found.estimate - 1:+.1%} tokens "
            f"per step against version {before.version}, at best {found.upper - 1:+.1%} with "
            f"{options.confidence:.0%} confidence over {live.num_requests} requests; up to "
            f"{-options.max_loss:.0%} would be borne",
            numbers={
                **_bounds("gain", found),
                "live_acceptance_length": live.acceptance_length,
                "best_acceptance_length": before.acceptance_length,
            },
        )

    def _after_drift(self, evidence: Evidence) -> Verdict | None:
        """Fall back to the stored version that did best on the traffic that drifted."""
        live = evidence.since_swap
        alarms = [one for one in evidence.drift if one.is_alarm]
        if live is None or not alarms:
            return None
        drift = max(alarms, key=lambda one: one.share)
        tenant = f"tenant {drift.tenant!r}" if drift.tenant else "the traffic"
        noticed = (
            f"acceptance of version {live.version} falls for {tenant} (score {drift.score:.1f} "
            f"from {drift.threshold:.0f} on)"
        )
        numbers = {"drift_score": drift.score, "drift_share": drift.share}
        if drift.share < 0.5:
            return Verdict(
                action="hold",
                reason=f"{noticed}, but that is {drift.share:.0%} of the requests: another "
                "version would serve the others too",
                numbers=numbers,
            )
        better = self._better_for(evidence, drift)
        if better is None:
            return Verdict(
                action="hold",
                reason=f"{noticed}; no stored version is known to do better on it, so the learner "
                "is asked for fresh data alone",
                numbers=numbers,
            )
        version, found = better
        return Verdict(
            action="roll_back",
            version=version,
            reason=f"{noticed}; version {version} made {found.estimate - 1:+.1%} tokens per step "
            f"against it there, at least {found.lower - 1:+.1%} with "
            f"{self.guard.confidence:.0%} confidence",
            numbers={**numbers, **_bounds("gain", found)},
        )

    def _better_for(self, evidence: Evidence, drift: Drift) -> tuple[int, Interval] | None:
        """Return the stored version that surely did better on the labels of a tenant."""
        live = evidence.since_swap
        assert live is not None
        of_tenant = [one for one in live.by_label if one.tenant == drift.tenant]
        found = []
        for other in _others(evidence, live.version):
            pairs = match_strata(other.by_label, of_tenant, "length")
            ratio = sequential_ratio(pairs, confidence=self.guard.confidence)
            enough = sum(above.count for above, _ in pairs) >= self.guard.min_requests
            if ratio is not None and enough and ratio.lower > 1:
                found.append((other.version, ratio))
        return max(found, key=lambda one: one[1].lower, default=None)

    def _try_again(self, evidence: Evidence) -> Verdict:
        """Switch speculation on again on evidence: a trial where requests can be routed."""
        off, options, trial = evidence.switched_off, self.guard, evidence.trial
        assert off is not None
        version = evidence.candidate.version
        problem = unfit(evidence.candidate)
        if problem is not None:
            return Verdict(action="drop", reason=problem)
        if trial is not None and trial.version == version:
            return self._judge_retrial(trial)
        wait_s = min(options.cooldown_s * 2 ** (off.num_times - 1), _LONGEST_COOLDOWN_S)
        numbers = {"seconds_off": off.seconds, "wait_s": wait_s, "times_off": float(off.num_times)}
        if off.seconds < wait_s:
            return Verdict(
                action="hold",
                reason=f"speculation is switched off, for the {off.num_times}. time in a row, and "
                f"is tried again after {wait_s:.0f} s",
                numbers=numbers,
            )
        if not evidence.can_route:
            return Verdict(
                action="promote",
                reason=f"speculation was off for {off.seconds:.0f} s; version {version} is tried "
                "on all requests, as this engine cannot try it on a share",
                numbers=numbers,
            )
        return Verdict(
            action="canary",
            reason=f"speculation was off for {off.seconds:.0f} s; version {version} is tried on "
            f"{options.retry_share:.0%} of the requests",
            numbers=numbers,
            share=options.retry_share,
        )

    def _judge_retrial(self, trial: Trial) -> Verdict:
        options, version = self.guard, trial.version
        found = compare_trial(trial, measure="otps", confidence=options.confidence)
        num_requests = trial.challenger.num_requests
        numbers = {"trial_requests": float(num_requests)}
        if gets_no_requests(trial):
            return Verdict(
                action="drop",
                reason=f"version {version} has served no request on trial: the engine let go of "
                "it, as it does when a drafter fails; speculation stays off",
                numbers=numbers,
            )
        idle = self._surely_idle(trial.challenger)
        if idle is not None:
            return Verdict(
                action="drop",
                reason=f"version {version} "
                f"{_makes_next_to_nothing(idle, options, trial.challenger)}; speculation stays off",
                numbers=numbers | _bounds("accepted", idle),
            )
        if found is None or num_requests < options.min_requests:
            return Verdict(
                action="canary",
                reason=f"version {version} has served {num_requests} requests on trial, too few "
                "to tell whether speculation pays again",
                numbers=numbers,
                share=options.retry_share,
            )
        numbers |= _bounds("speedup", found)
        reason = (
            f"version {version} makes {found.estimate - 1:+.1%} output tokens per second against "
            f"no speculation in {num_requests} requests, between {found.lower - 1:+.1%} and "
            f"{found.upper - 1:+.1%} with {options.confidence:.0%} confidence"
        )
        if found.lower > 1:
            return Verdict(action="promote", reason=reason, numbers=numbers)
        if found.upper < 1 or num_requests >= options.probation_requests:
            reason += "; speculation stays off"
            return Verdict(action="drop", reason=reason, numbers=numbers)
        return Verdict(action="canary", reason=reason, numbers=numbers, share=options.retry_share)


def compare_lengths(
    above: ServingStats, below: ServingStats, *, confidence: float
) -> Interval | None:
    """Return the ratio of tokens per step at equal tenant and route, None if they share none."""
    pairs = match_strata(above.by_label, below.by_label, "length")
    return sequential_ratio(pairs, confidence=confidence)


def _makes_next_to_nothing(found: Interval, options: GuardSection, stats: ServingStats) -> str:
    return (
        f"makes {found.estimate:.3f} tokens per step, at most {found.upper:.3f} with "
        f"{options.confidence:.0%} confidence over {stats.num_requests} requests: below "
        f"{options.min_acceptance_length:.2f}, drafting brings nothing at any price"
    )


def _best_other(evidence: Evidence, live: ServingStats, min_requests: int) -> ServingStats | None:
    """Return the stored version with the longest acceptance on what the live one serves now."""
    labels = {(one.tenant, one.route) for one in live.by_label}
    known = [
        other
        for other in _others(evidence, live.version)
        if sum(one.length.count for one in other.by_label if (one.tenant, one.route) in labels)
        >= min_requests
    ]
    return max(known, key=lambda one: one.acceptance_length, default=None)


def _others(evidence: Evidence, live_version: int) -> list[ServingStats]:
    return [
        stats
        for stats in evidence.serving
        if stats.version not in (NO_DRAFTER, live_version) and stats.version in evidence.stored
    ]


def _bounds(name: str, found: Interval) -> dict[str, float]:
    return {
        name: found.estimate - 1,
        f"{name}_lower_bound": found.lower - 1,
        f"{name}_upper_bound": found.upper - 1,
    }
