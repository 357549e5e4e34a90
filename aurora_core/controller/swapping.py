"""From a published version to the one that serves: judge it, and do what was decided.

    learner event -> publish() -> wake-up -> run(): policy.decide -> backend.swap -> state.json
                                    ^                                      |
    every few seconds --------------+ a held candidate is judged again     v
                                      as traffic goes on           hooks, learner
                                                                           ^
    engine status, once a second -> reconcile(): another drafter serves ---+

One version is judged at a time, the one on trial before the newest one. What is decided is
appended to `verdicts.jsonl` with all its evidence, so that a policy can be replayed on it. The
engine has the last word on what serves: it may let go of a drafter that fails. A person has the
last word on what should: what they make live stays until they let go.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from aurora_core.config import GuardSection
from aurora_core.controller.evidence import LiveTraffic
from aurora_core.controller.live_drafter import LiveDrafter, name_of
from aurora_core.controller.record_file import RecordFile
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import Backend, SwapPolicy
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    Evidence,
    Verdict,
)
from aurora_core.wire import from_dict, to_dict

log = logging.getLogger(__name__)


async def _nothing() -> None:
    """Be told, and do nothing."""


class Swapping(LiveDrafter):
    """Judges what waits, what is on trial and what is live, and does what was decided."""

    def __init__(
        self,
        *,
        backend: Backend,
        policy: SwapPolicy,
        traffic: LiveTraffic,
        live: DraftVersion | None,
        previous: DraftVersion | None,
        verdicts: RecordFile,
        find: Callable[[int], DraftVersion],
        note: Callable[[str], None],
        notify: Callable[..., None],
        on_change: Callable[[], Awaitable[None]],
        guard: GuardSection | None = None,
        stored: Callable[[], tuple[int, ...]] = tuple,
        on_drift: Callable[[], Awaitable[None]] = _nothing,
        pinned: bool = False,
        switched_off: bool = False,
        review_s: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            backend: the running engine; `live` serves already.
            policy: the judge.
            traffic: what requests say about each version.
            live: version that serves at start, None for none.
            previous: version to roll back to.
            verdicts: is given one record per decision.
            find: returns a published version by its number, or raises CheckpointError.
            note: tells a person in a sentence what nobody decided.
            notify: calls a notification hook by name.
            on_change: awaited whenever `live`, `previous` or `challenger` changed.
            guard: how long a version is on probation, and the share without speculation.
            stored: returns the versions on disk.
            on_drift: awaited when the acceptance of a tenant's requests is found to fall.
            pinned: a person chose what is live, in an earlier run.
            switched_off: speculation was switched off by a verdict, in an earlier run.
            review_s: a candidate that was held is judged again after so many seconds.
            clock: Unix seconds.
        """
        super().__init__(
            backend=backend,
            traffic=traffic,
            live=live,
            previous=previous,
            verdicts=verdicts,
            find=find,
            note=note,
            notify=notify,
            on_change=on_change,
            plain_share=(guard or GuardSection()).plain_share,
            pinned=pinned,
            switched_off=switched_off,
            clock=clock,
        )
        self._policy, self._guard, self._stored = policy, guard or GuardSection(), stored
        self._on_drift, self._drifting = on_drift, frozenset[str]()
        self._review_s = review_s
        self._last_action: tuple[int, str] | None = None
        self._refused: set[int] = set()
        self._published = anyio.Event()

    def publish(self, draft: DraftVersion) -> None:
        """Announce a version and have it judged; it takes the place of one that still waits."""
        self._notify("aurora_draft_published", draft=draft)
        self.challenger = draft
        self._published.set()

    async def run(self) -> None:
        """Judge whatever is published, until cancelled."""
        while True:
            with anyio.move_on_after(self._review_s):
                await self._published.wait()
            if self._published.is_set():
                self._published = anyio.Event()
                await self._on_change()
            async with self._changing:
                await self.review()

    async def review(self) -> None:
        """Judge what waits or is on trial, then what is live."""
        candidate = self.trials.draft or self.challenger
        if candidate is None and self.is_switched_off:
            candidate = self.previous
        if candidate is not None:
            await self._judge(candidate)
        if self.live is not None:
            await self._judge(self.live)
        await self._notice_drift()
        await self.trials.update(live=self.live)

    async def _notice_drift(self) -> None:
        """Ask for fresh data when the acceptance of a tenant's requests begins to fall."""
        alarms = [one for one in self._traffic.drift() if one.is_alarm]
        new = [one for one in alarms if one.tenant not in self._drifting]
        self._drifting = frozenset(one.tenant for one in alarms)
        for drift in new:
            tenant = f"tenant {drift.tenant!r}" if drift.tenant else "the traffic"
            self._note(f"acceptance falls for {tenant}: the learner is asked for fresh data")
            self._verdicts.append(
                {
                    "kind": "drift",
                    "time": self._clock(),
                    "version": self.live.version if self.live else NO_DRAFTER,
                    "drift": to_dict(drift),
                }
            )
        if new:
            await self._on_drift()

    async def _judge(self, candidate: DraftVersion) -> None:
        """Ask the policy and do what it says. A live candidate is reviewed, not promoted again."""
        evidence = self._traffic.evidence(
            candidate,
            live=self.live,
            previous=self.previous,
            now=self._clock(),
            waiting=self.challenger if self.challenger is not candidate else None,
            stored=tuple(one for one in self._stored() if one not in self._refused),
            can_route=self.trials.can_route,
            pinned=self.pinned,
            switched_off=self._switched_off(),
        )
        verdict = self._decide(evidence)
        under_review = self.live is not None and candidate.version == self.live.version
        waits = verdict.action == "promote" and self._backend.provides.hot_swap == "restart"
        changes_nothing = (
            waits
            or verdict.action in ("hold", "shadow", "canary")
            or (under_review and verdict.action in ("promote", "drop"))
        )
        if changes_nothing and (
            under_review or self._last_action == (candidate.version, verdict.action)
        ):
            return  # heard before: the log holds decisions, not their repetition
        self._last_action = (candidate.version, verdict.action)
        self._record("verdict", candidate, verdict, evidence)
        if waits:
            # It stays the challenger: a run that can make it live judges it first.
            reason = f"{name_of(candidate)} is ready, and waits: {self._backend.to_swap}"
            waiting = Verdict(action="hold", reason=reason)
            self._record("swap_waits", candidate, waiting, evidence)
            return
        # A run that ends in the middle must not leave an engine that swapped and a state file
        # that does not know.
        with anyio.CancelScope(shield=True):
            await self._act(verdict, evidence)

    async def _act(self, verdict: Verdict, evidence: Evidence) -> None:
        candidate = evidence.candidate
        match verdict.action:
            case "promote":
                await self._swap(candidate, evidence, previous=self.live)
            case "roll_back":
                await self._roll_back(verdict, evidence)
            case "disable_speculation" if self.live is not None:
                lasted = evidence.num_requests_since_swap > self._guard.probation_requests
                num_off = 1 if lasted else self._num_off + 1
                self._off_since, self._num_off = self._clock(), num_off
                await self._swap(None, evidence, previous=self.live)
                if self.live is not None:  # the engine refused
                    self._off_since = None
            case "canary":
                await self._begin_trial(verdict, evidence, possible=self.trials.can_route)
            case "shadow":
                await self._begin_trial(
                    verdict, evidence, possible=self.trials.can_shadow, shadow=True
                )
            case "drop":
                await self._drop(candidate)

    async def _roll_back(self, verdict: Verdict, evidence: Evidence) -> None:
        draft = self.previous
        if verdict.version is not None:
            try:
                draft = self._find(verdict.version)
            except CheckpointError as error:
                self._fail(evidence, error)
                return
        await self._swap(draft, evidence, previous=None)

    async def _begin_trial(
        self, verdict: Verdict, evidence: Evidence, *, possible: bool, shadow: bool = False
    ) -> None:
        if not possible or self.trials.is_running(evidence.candidate, shadow=shadow):
            return
        try:
            await self.trials.begin(
                evidence.candidate, verdict.share, live=self.live, shadow=shadow
            )
        except (BackendError, CheckpointError) as error:
            self._fail(evidence, error, tried="the trial")
            await self._drop(evidence.candidate)

    async def _drop(self, candidate: DraftVersion) -> None:
        """Judge a version no more."""
        if self.trials.draft is candidate:
            await self.trials.end(live=self.live)
        if self.challenger is candidate:
            self.challenger = None
        if self.is_switched_off:
            self._off_since, self._num_off = self._clock(), self._num_off + 1
        await self._on_change()

    def _decide(self, evidence: Evidence) -> Verdict:
        try:
            return self._policy.decide(evidence)
        except Exception as error:  # a plugin's mistake must not end the service
            log.exception("the swap policy failed")
            return Verdict(action="hold", reason=f"the swap policy failed: {error!r}")

    async def _swap(
        self, draft: DraftVersion | None, evidence: Evidence, *, previous: DraftVersion | None
    ) -> None:
        """Make `draft` live. A swap that fails leaves everything as it was and is a verdict too."""
        if self.challenger is evidence.candidate:
            self.challenger = None  # it has its chance now; a newer one may come meanwhile
        try:
            with self.gaps.window():
                receipt = await self._backend.swap(draft)
        except (BackendError, CheckpointError) as error:
            self._fail(evidence, error)
            if draft is not None:
                self._refused.add(draft.version)  # no roll back is tried again and again
            if self.trials.draft is evidence.candidate:
                await self.trials.end(live=self.live)
            await self._on_change()
            return
        await self._take_over(draft, receipt, previous=previous, kind="swap")

    def _fail(self, evidence: Evidence, error: Exception, *, tried: str = "the swap") -> None:
        self.num_failed_swaps += 1
        verdict = Verdict(
            action="hold",
            reason=f"{tried} failed and {name_of(self.live)} goes on serving: {error}",
        )
        self._record("swap_failed", evidence.candidate, verdict, evidence)


def read_evidence(line: dict[str, Any]) -> tuple[Evidence, Verdict]:
    """Read a line of kind `verdict` back: what a policy saw, and what it said."""
    return from_dict(Evidence, line["evidence"]), from_dict(Verdict, line["verdict"])
