"""The console's lines about one of several lineages, each with its name before it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aurora_core import hookimpl
from aurora_core.console_text import describe_requests, version_name
from aurora_core.controller.serving_stats import acceptance_length_of, is_live, mean_otps
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    Evidence,
    RequestStats,
    SwapReceipt,
    Verdict,
)

if TYPE_CHECKING:
    from aurora_core.console import RunConsole


class LineageConsole:
    """Shows what one lineage does, on the console of its run."""

    def __init__(self, console: RunConsole, name: str) -> None:
        """
        Args:
            console: of the run.
            name: of the lineage.
        """
        self.live_version = NO_DRAFTER
        """To be set to the version that serves at start."""
        self._console, self._name = console, name
        self._recent: deque[RequestStats] = deque(maxlen=50)
        self._recent_plain: deque[RequestStats] = deque(maxlen=50)
        self._num_requests = 0
        self._learner_state = "starting"

    def note(self, text: str) -> None:
        """Say one thing that happened."""
        self._console.note(f"{self._name}: {text}")

    def learner_state(self, state: str, text: str) -> None:
        """Say in which state the learner is now."""
        if state != self._learner_state or state == "restarting":
            self.note(text)
        self._learner_state = state

    @hookimpl
    def aurora_requests_finished(self, requests: list[RequestStats]) -> None:
        for request in requests:
            live = is_live(request, self.live_version)
            (self._recent if live else self._recent_plain).append(request)
        self._num_requests += len(requests)
        text = describe_requests(
            self._num_requests,
            None,
            live_otps=mean_otps(self._recent),
            plain_otps=mean_otps(self._recent_plain),
            length=acceptance_length_of(self._recent),
            live_version=self.live_version,
        )
        self._console.lineage(self._name, text)

    @hookimpl
    def aurora_learner_progress(self, step: int, metrics: dict[str, float]) -> None:
        self._learner_state = "learning"

    @hookimpl
    def aurora_draft_published(self, draft: DraftVersion) -> None:
        self.note(f"published version {draft.version} (step {draft.global_step:,})")

    @hookimpl
    def aurora_swap_decided(
        self, draft: DraftVersion, verdict: Verdict, evidence: Evidence
    ) -> None:
        action = verdict.action.replace("_", " ")
        self.note(f"verdict: {action} version {draft.version}: {verdict.reason}")

    @hookimpl
    def aurora_draft_swapped(
        self, draft: DraftVersion | None, previous: DraftVersion | None, receipt: SwapReceipt
    ) -> None:
        self.live_version = receipt.version
        self.note(f"{version_name(receipt.version)} is live")
