"""From a published version to the one that serves: judge, swap, remember, tell.

    learner event -> publish() -> wake-up -> run(): policy.decide -> backend.swap -> state.json
                                    ^                                      |
    every few seconds --------------+ a held candidate is judged again     v
                                      as traffic goes on           hooks, learner
                                                                           ^
    engine status, once a second -> reconcile(): another drafter serves ---+

One version is judged at a time, always the newest one. What is decided is appended to
`verdicts.jsonl` with all its evidence, so that a policy can be replayed on it. The engine has the
last word on what serves: it may let go of a drafter that fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from aurora_core.controller.evidence import LiveTraffic
from aurora_core.controller.record_file import RecordFile
from aurora_core.controller.swap_gaps import SwapGaps
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import Backend, SwapPolicy
from aurora_core.records import (
    NO_DRAFTER,
    UNTRAINED,
    BackendStatus,
    DraftVersion,
    Evidence,
    SwapReceipt,
    Verdict,
)
from aurora_core.wire import from_dict, to_dict

log = logging.getLogger(__name__)


class Swapping:
    """Owns which version is live, which one was before, and which one waits to be judged."""

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
            review_s: a candidate that was held is judged again after so many seconds.
            clock: Unix seconds.
        """
        self.live, self.previous = live, previous
        self.challenger: DraftVersion | None = None
        self.gaps = SwapGaps()
        """The pauses that clients saw, at these swaps and elsewhere."""
        self.num_failed_swaps = 0
        self.num_engine_changes = 0
        """Times the engine was found to serve another drafter than the last swap made live."""
        self._backend, self._policy, self._traffic = backend, policy, traffic
        self._verdicts, self._find = verdicts, find
        self._note, self._notify, self._on_change = note, notify, on_change
        self._review_s, self._clock = review_s, clock
        self._last_action: tuple[int, str] | None = None
        self._published = anyio.Event()
        self._changing = anyio.Lock()

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
                if self.challenger is not None:
                    await self._judge(self.challenger)
                if self.live is not None:
                    await self._judge(self.live)

    async def reconcile(self, status: BackendStatus) -> None:
        """Believe the engine when it serves another drafter than this run thought.

        It lets go of a drafter that fails while drafting, and serves on without speculation; or it
        did swap, and its answer was lost.

        Args:
            status: what the engine said last.

        Raises:
            BackendError: it does not answer.
        """
        # A swap that is on its way is no surprise, and the next status comes in a second.
        if self._agrees(status) or self._changing.locked():
            return
        with anyio.CancelScope(shield=True):
            async with self._changing:
                status = await self._backend.status()  # one may have ended since it was read
                if not self._agrees(status):
                    await self._accept(status)

    def _agrees(self, status: BackendStatus) -> bool:
        if self.live is None:
            return status.live_version in (NO_DRAFTER, UNTRAINED)
        same = status.live_version == self.live.version
        return same and status.checksum in ("", self.live.checksum)

    async def _accept(self, status: BackendStatus) -> None:
        version, draft = status.live_version, self._published_as(status)
        receipt = SwapReceipt(version=version, checksum=status.checksum, load_ms=0.0, stall_ms=0.0)
        thought, previous = _name(self.live), self.live
        if version == NO_DRAFTER:
            # What fails is nothing to go back to.
            previous = self.previous
            reason = (
                f"the engine let go of {thought}, as it does when a drafter fails, and serves on "
                "without speculation; its log says why"
            )
        elif draft is not None:
            reason = f"the engine serves version {version}, and not {thought} as this run thought"
        else:
            reason = (
                f"the engine served version {version} with weights that this run did not publish, "
                f"and not {thought}; speculation is switched off"
            )
            try:
                receipt = await self._backend.swap(None)
            except BackendError as error:
                log.warning("%s, but the engine refuses: %s", reason, error)
                return
        self.num_engine_changes += 1
        log.warning("%s", reason)
        self._note(reason)
        await self._take_over(
            draft, receipt, previous=previous, kind="engine_changed", reason=reason
        )

    def _published_as(self, status: BackendStatus) -> DraftVersion | None:
        if status.live_version == NO_DRAFTER:
            return None
        try:
            draft = self._find(status.live_version)
        except CheckpointError:
            return None
        return draft if status.checksum in ("", draft.checksum) else None

    async def _judge(self, candidate: DraftVersion) -> None:
        """Ask the policy and do what it says. A live candidate is reviewed, not promoted again."""
        evidence = self._traffic.evidence(
            candidate, live=self.live, previous=self.previous, now=self._clock()
        )
        verdict = self._decide(evidence)
        under_review = self.live is not None and candidate.version == self.live.version
        changes_nothing = verdict.action in ("hold", "shadow", "canary") or (
            under_review and verdict.action == "promote"
        )
        if changes_nothing and (
            under_review or self._last_action == (candidate.version, verdict.action)
        ):
            return  # heard before: the log holds decisions, not their repetition
        self._last_action = (candidate.version, verdict.action)
        self._record("verdict", candidate, verdict, evidence)
        # A run that ends in the middle must not leave an engine that swapped and a state file
        # that does not know.
        with anyio.CancelScope(shield=True):
            match verdict.action:
                case "promote":
                    await self._swap(candidate, evidence, previous=self.live)
                case "roll_back":
                    await self._swap(self.previous, evidence, previous=None)
                case "disable_speculation":
                    await self._swap(None, evidence, previous=self.live)

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
            self.num_failed_swaps += 1
            verdict = Verdict(
                action="hold",
                reason=f"the swap failed and {_name(self.live)} goes on serving: {error}",
            )
            self._record("swap_failed", evidence.candidate, verdict, evidence)
            await self._on_change()
            return
        await self._take_over(draft, receipt, previous=previous, kind="swap")

    async def _take_over(
        self,
        draft: DraftVersion | None,
        receipt: SwapReceipt,
        *,
        previous: DraftVersion | None,
        kind: str,
        **facts: Any,
    ) -> None:
        """Take note that `draft` is live, and tell everyone."""
        replaced, self.live, self.previous = self.live, draft, previous
        now = self._clock()
        self._traffic.swapped(now)
        line = {"kind": kind, "time": now, "version": receipt.version, "receipt": to_dict(receipt)}
        self._verdicts.append({**line, **facts})
        await self._on_change()
        self._notify("aurora_draft_swapped", draft=draft, previous=replaced, receipt=receipt)

    def _record(
        self, kind: str, candidate: DraftVersion, verdict: Verdict, evidence: Evidence
    ) -> None:
        log.info("version %d: %s: %s", candidate.version, verdict.action, verdict.reason)
        self._verdicts.append(
            {
                "kind": kind,
                "time": self._clock(),
                "version": candidate.version,
                "verdict": to_dict(verdict),
                "evidence": to_dict(evidence),
            }
        )
        self._notify("aurora_swap_decided", draft=candidate, verdict=verdict, evidence=evidence)


def _name(draft: DraftVersion | None) -> str:
    return "no drafter" if draft is None else f"version {draft.version}"


def read_evidence(line: dict[str, Any]) -> tuple[Evidence, Verdict]:
    """Read a line of kind `verdict` back: what a policy saw, and what it said."""
    return from_dict(Evidence, line["evidence"]), from_dict(Verdict, line["verdict"])
