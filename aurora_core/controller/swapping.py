"""From a published version to the one that serves: judge, swap, remember, tell.

    learner event -> publish() -> wake-up -> run(): policy.decide -> backend.swap -> state.json
                                    ^                                      |
    every few seconds --------------+ a held candidate is judged again     v
                                      as traffic goes on           hooks, learner

One version is judged at a time, always the newest one. What is decided is appended to
`verdicts.jsonl` with all its evidence, so that a policy can be replayed on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from aurora_core.controller.evidence import LiveTraffic
from aurora_core.controller.run_directory import append_line
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import Backend, SwapPolicy
from aurora_core.records import DraftVersion, Evidence, Verdict
from aurora_core.versions import RunState
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
        verdicts: Path,
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
            verdicts: file that one JSON line per decision is appended to.
            notify: calls a notification hook by name.
            on_change: awaited whenever `live`, `previous` or `challenger` changed.
            review_s: a candidate that was held is judged again after so many seconds.
            clock: Unix seconds.
        """
        self.live, self.previous = live, previous
        self.challenger: DraftVersion | None = None
        self.num_failed_swaps = 0
        self._backend, self._policy, self._traffic = backend, policy, traffic
        self._verdicts, self._notify, self._on_change = verdicts, notify, on_change
        self._review_s, self._clock = review_s, clock
        self._last_action: tuple[int, str] | None = None
        self._published = anyio.Event()

    @property
    def state(self) -> RunState:
        """Which versions are in use now."""
        champion, previous, challenger = (
            None if draft is None else draft.version
            for draft in (self.live, self.previous, self.challenger)
        )
        return RunState(champion=champion, previous=previous, challenger=challenger)

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
            if self.challenger is not None:
                await self._judge(self.challenger)
            if self.live is not None:
                await self._judge(self.live)

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
            receipt = await self._backend.swap(draft)
        except (BackendError, CheckpointError) as error:
            self.num_failed_swaps += 1
            serving = f"version {self.live.version}" if self.live else "no drafter"
            verdict = Verdict(
                action="hold", reason=f"the swap failed and {serving} goes on serving: {error}"
            )
            self._record("swap_failed", evidence.candidate, verdict, evidence)
            await self._on_change()
            return
        replaced, self.live, self.previous = self.live, draft, previous
        self._traffic.swapped(self._clock())
        append_line(
            self._verdicts,
            {
                "kind": "swap",
                "time": self._clock(),
                "version": receipt.version,
                "receipt": to_dict(receipt),
            },
        )
        await self._on_change()
        self._notify("aurora_draft_swapped", draft=draft, previous=replaced, receipt=receipt)

    def _record(
        self, kind: str, candidate: DraftVersion, verdict: Verdict, evidence: Evidence
    ) -> None:
        log.info("version %d: %s: %s", candidate.version, verdict.action, verdict.reason)
        append_line(
            self._verdicts,
            {
                "kind": kind,
                "time": self._clock(),
                "version": candidate.version,
                "verdict": to_dict(verdict),
                "evidence": to_dict(evidence),
            },
        )
        self._notify("aurora_swap_decided", draft=candidate, verdict=verdict, evidence=evidence)


def read_evidence(line: dict[str, Any]) -> tuple[Evidence, Verdict]:
    """Read a line of kind `verdict` back: what a policy saw, and what it said."""
    return from_dict(Evidence, line["evidence"]), from_dict(Verdict, line["verdict"])
