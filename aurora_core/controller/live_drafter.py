"""Which drafter is live, and who may change that: a verdict, a person, the engine itself.

    judged, chosen --> Backend.swap --> take over --> trial ends, verdicts.jsonl, state.json, hooks
    engine status ---> reconcile ----------^

The engine has the last word on what serves: it may let go of a drafter that fails. A person has the
last word on what should: what they make live stays until they let go.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from aurora_core.controller.evidence import LiveTraffic
from aurora_core.controller.record_file import RecordFile
from aurora_core.controller.swap_gaps import SwapGaps
from aurora_core.controller.trials import Trials
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import Backend
from aurora_core.records import (
    NO_DRAFTER,
    UNTRAINED,
    BackendStatus,
    DraftVersion,
    Evidence,
    SwapReceipt,
    SwitchedOff,
    Verdict,
)
from aurora_core.wire import to_dict

log = logging.getLogger(__name__)


class LiveDrafter:
    """Knows what is live, what was before and what waits, and changes it all or nothing."""

    def __init__(
        self,
        *,
        backend: Backend,
        traffic: LiveTraffic,
        live: DraftVersion | None,
        previous: DraftVersion | None,
        verdicts: RecordFile,
        find: Callable[[int], DraftVersion],
        note: Callable[[str], None],
        notify: Callable[..., None],
        on_change: Callable[[], Awaitable[None]],
        plain_share: float,
        pinned: bool,
        switched_off: bool,
        clock: Callable[[], float],
    ) -> None:
        """As `Swapping`."""
        self.live, self.previous = live, previous
        self.challenger: DraftVersion | None = None
        """The newest version that waits to be judged."""
        self.gaps = SwapGaps()
        """The pauses that clients saw, at these swaps and elsewhere."""
        self.num_failed_swaps = 0
        self.num_engine_changes = 0
        """Times the engine was found to serve another drafter than the last swap made live."""
        self.pinned = pinned
        """Whether a person chose what is live."""
        self._backend, self._traffic = backend, traffic
        self._verdicts, self._find = verdicts, find
        self._note, self._notify, self._on_change = note, notify, on_change
        self._clock = clock
        self._off_since = clock() if switched_off else None
        self._num_off = int(switched_off)
        traffic.serve_first(live)
        self.trials = Trials(backend, traffic, plain_share=plain_share, clock=clock)
        self._changing = anyio.Lock()

    @property
    def is_switched_off(self) -> bool:
        """Whether a verdict switched speculation off, and nothing has switched it on since."""
        return self.live is None and self._off_since is not None

    async def choose(self, version: int | None, *, reason: str) -> SwapReceipt:
        """Make a version live because a person says so; it stays until `let_go`.

        Args:
            version: None switches speculation off.
            reason: is written down.

        Raises:
            CheckpointError: there is no such version, or it cannot be read.
            BackendError: the engine refuses; the previous drafter serves.
        """
        with anyio.CancelScope(shield=True):
            async with self._changing:
                draft = None if version is None else self._find(version)
                with self.gaps.window():
                    receipt = await self._backend.swap(draft)
                self.pinned, self._off_since = True, None
                if self.challenger is not None and self.challenger.version == version:
                    self.challenger = None
                previous = self.live or self.previous
                if previous is not None and previous.version == version:
                    previous = None
                self._note(reason)
                await self._take_over(
                    draft, receipt, previous=previous, kind="operator", reason=reason
                )
        return receipt

    async def let_go(self, *, reason: str) -> None:
        """Let the swap policy decide again."""
        async with self._changing:
            self.pinned = False
            self._note(reason)
            self._verdicts.append(
                {"kind": "operator", "time": self._clock(), "version": None, "reason": reason}
            )
            await self._on_change()

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
        thought, previous = name_of(self.live), self.live
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

    def _switched_off(self) -> SwitchedOff | None:
        if self._off_since is None or self.live is not None:
            return None
        return SwitchedOff(seconds=self._clock() - self._off_since, num_times=self._num_off)

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
        self._traffic.swapped(now, receipt)
        if draft is not None:
            self._off_since = None
        on_trial = self.trials.draft
        await self.trials.end(live=draft)
        if on_trial is not None and draft != on_trial and self.challenger is None:
            self.challenger = on_trial  # what it was compared with is gone: its trial begins anew
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


def name_of(draft: DraftVersion | None) -> str:
    """Return what to call a version, or none, in a sentence."""
    return "no drafter" if draft is None else f"version {draft.version}"
