"""The reinforcement-learning view of traces and of held-out replays.

The drafter is the policy and the target with its check is the environment. A state is a committed
prefix, an action is the chain or tree proposed there, and the reward of a verification step is the
number of draft tokens that it accepted. A step commits these and one token of the target's own,
and the text is the target's in any case: the undiscounted return of a request is the number of
target passes that drafting saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aurora_core.records import NO_DRAFTER

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_core.records import Holdout, Trace

_MAX_VERSIONS = 256
"""Versions whose rewards are remembered."""


def step_rewards(trace: Trace) -> Tensor:
    """Return the reward of each verification step, int64 [S]; 0 where nothing was drafted.

    Of a tree, only the accepted path is rewarded.
    """
    return trace.steps.num_accepted


def request_return(trace: Trace) -> int:
    """Return the sum of rewards of a request."""
    return int(step_rewards(trace).sum())


@dataclass(slots=True)
class Rewards:
    """Rewards of some steps, as sums that add up."""

    num_steps: int = 0
    """Steps that carried a draft; others show no policy."""
    total: int = 0

    @property
    def per_step(self) -> float:
        """Mean reward, NaN without steps."""
        return self.total / self.num_steps if self.num_steps else math.nan

    def add(self, other: Rewards) -> None:
        """Add other steps."""
        self.num_steps += other.num_steps
        self.total += other.total


def rewards_by_version(trace: Trace) -> dict[int, Rewards]:
    """Return draft version -> rewards of the steps that it drafted for, oldest version first.

    A request during which a version went live has several. Plain decoding steps are left out.
    """
    versions, rewards = trace.steps.version, step_rewards(trace)
    found: dict[int, Rewards] = {}
    for version in sorted(set(versions.tolist())):
        if version != NO_DRAFTER:
            mine = versions == version
            found[version] = Rewards(int(mine.sum()), int(rewards[mine].sum()))
    return found


class RewardCurve:
    """Rewards of served requests by draft version, each trace counted once.

    The curve over versions shows what traffic got, not which version is better: each version met
    other requests. `advantage` compares on the same text.
    """

    def __init__(self) -> None:
        self._by_version: dict[int, Rewards] = {}
        self._recent: dict[int, Rewards] = {}
        self._returns: list[int] = []

    def add(self, trace: Trace) -> None:
        """Count a trace; one that was decoded plainly throughout shows no policy."""
        found = rewards_by_version(trace)
        if not found:
            return
        self._returns.append(request_return(trace))
        for version, rewards in found.items():
            self._recent.setdefault(version, Rewards()).add(rewards)
            self._by_version.setdefault(version, Rewards()).add(rewards)
        while len(self._by_version) > _MAX_VERSIONS:
            del self._by_version[min(self._by_version)]

    def metrics(self) -> dict[str, float]:
        """Return the figures of what was added since `begin_window`; none if nothing was."""
        recent = Rewards()
        for rewards in self._recent.values():
            recent.add(rewards)
        if not recent.num_steps:
            return {}
        metrics = {
            "reward/per_step": recent.per_step,
            "reward/return": sum(self._returns) / len(self._returns),
        }
        for version in sorted(self._recent):
            if version in self._by_version:
                metrics[f"reward/version_{version}"] = self._by_version[version].per_step
        return metrics

    def begin_window(self) -> None:
        """Start anew what `metrics` tells of; sums by version go on."""
        self._recent, self._returns = {}, []

    def state_dict(self) -> dict[str, list[int]]:
        """Return the sums by version; plain data."""
        return {str(v): [r.num_steps, r.total] for v, r in self._by_version.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[int]]) -> None:
        """Continue where `state_dict` was taken."""
        self._by_version = {int(v): Rewards(steps, total) for v, (steps, total) in state.items()}


class Advantage(NamedTuple):
    """What drafting with a candidate is worth over drafting with the live version."""

    mean: float
    """Accepted draft tokens per step."""
    error: float
    """Standard error of the mean over traces; NaN with fewer than two."""


def advantage(holdout: Holdout) -> Advantage | None:
    """Return the candidate's advantage on held-out traces; None without a live version.

    At each committed position s of each trace both policies draft greedily, and the advantage is
    the mean of reward(s, candidate) - reward(s, live). It is that of one step: a draft changes
    where the next step begins, but never the text, and what later steps gain is not added. The
    positions are all those of the text, not the fewer ones at which a policy would have drafted.

    A trace's positions depend on each other, so the standard error is that of a ratio of sums over
    traces, linearised (Cochran, Sampling Techniques, 3rd edition, chapter 6):

        g_i, n_i   gained tokens and positions of trace i of m with n_i > 0
        mean       A = sum g_i / sum n_i
        error      sqrt(m / (m - 1) * sum (g_i - A n_i)^2) / sum n_i
    """
    if holdout.live_version is None:
        return None
    traces = [
        (sum(candidate) - sum(live), anchors)
        for candidate, live, anchors in zip(
            holdout.candidate_accepted, holdout.live_accepted, holdout.num_anchors, strict=True
        )
        if anchors
    ]
    if not traces:
        return None
    num_traces, num_anchors = len(traces), sum(anchors for _, anchors in traces)
    mean = sum(gained for gained, _ in traces) / num_anchors
    if num_traces < 2:
        return Advantage(mean, math.nan)
    squares = sum((gained - mean * anchors) ** 2 for gained, anchors in traces)
    return Advantage(mean, math.sqrt(num_traces / (num_traces - 1) * squares) / num_anchors)
