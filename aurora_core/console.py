"""What a run shows: a live panel on a terminal, one plain line per event anywhere else.

The console is an observer: it hears of everything through the hooks, like any plugin, and besides
is told what no hook tells: the banner, what is being waited for, and the report.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from aurora_core import hookimpl
from aurora_core.console_text import (
    ACTION_STYLES,
    count,
    describe_learner,
    describe_requests,
    sparkline,
    summary_rows,
    version_name,
)
from aurora_core.controller.evidence import acceptance_length_of, is_live, mean_otps
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    Evidence,
    RequestStats,
    SwapReceipt,
    Verdict,
)
from aurora_core.report.series import RequestSeries

if TYPE_CHECKING:
    from aurora_core.config import RunConfig

PLAIN_INTERVAL_S = 10.0
"""Progress of requests and of the learner is written as a plain line at most this often."""


class RunConsole:
    """Shows one run. Use as a context manager, and register it as a plugin meanwhile."""

    def __init__(self, stream: TextIO | None = None, *, live: bool | None = None) -> None:
        """
        Args:
            stream: where to write; standard output if not given.
            live: whether to draw the panel; None asks the stream whether it is a terminal.
        """
        stream = stream or sys.stdout
        self._console = RichConsole(file=stream, highlight=False)
        self._is_live = self._console.is_terminal if live is None else live
        self._live: Live | None = None
        self._rerouted: list[logging.StreamHandler[TextIO]] = []
        self._started = time.monotonic()
        self._last_lines: dict[str, float] = {}
        self._wanted_requests: int | None = None
        self._num_requests = self._num_swaps = 0
        self._count_requests: Callable[[], int] = lambda: self._num_requests
        self._recent: deque[RequestStats] = deque(maxlen=50)
        self._recent_plain: deque[RequestStats] = deque(maxlen=50)
        self._series = RequestSeries(max_bins=256)
        self._live_version, self._newest_version = NO_DRAFTER, 0
        self._learner_step = 0
        self._learner_metrics: dict[str, float] = {}
        self._learner_state = "starting"
        self._phase = "starting the engine"
        self._verdict = ""
        self._lineages: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the panel; later lines appear below it. Callable twice."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            for handler in self._rerouted:
                handler.setStream(sys.stderr)

    def banner(
        self,
        facts: Sequence[tuple[str, str]],
        *,
        live_version: int,
        newest: int,
        wanted_requests: int | None,
        count_requests: Callable[[], int] | None = None,
    ) -> None:
        """Show what was resolved, before any work.

        Args:
            facts: (name, value) in order: plugins, components, target, folders.
            live_version: version that serves at start, `NO_DRAFTER` for none.
            newest: newest version that exists, 0 without any.
            wanted_requests: the run ends after so many, None for no such limit.
            count_requests: counts those that `wanted_requests` is about, which leaves comparisons
                out; None counts all that finish.
        """
        self._live_version, self._newest_version = live_version, newest
        self._wanted_requests = wanted_requests
        self._count_requests = count_requests or (lambda: self._num_requests)
        self._print_pairs("aurora run", facts)

    def note(self, text: str) -> None:
        """Say one thing that happened."""
        self._line(text)

    def fail(self, text: str) -> None:
        """Say on standard error, in one sentence, why a run that had begun ended badly."""
        self.close()
        with contextlib.suppress(OSError):
            print(f"aurora: {text}", file=sys.stderr)

    def phase(self, text: str) -> None:
        """Say what the run is doing now."""
        self._phase = text
        if not self._is_live:
            self._line(text)

    def progress(self, text: str) -> None:
        """Say how far the run has come with what it is doing; again and again, if need be."""
        self._phase = text
        self._progress_line("phase", text)

    def learner_state(self, state: str, text: str) -> None:
        """Say in which state the learner is now."""
        if state != self._learner_state or state == "restarting":
            self._line(text)
        self._learner_state = state

    def lineage(self, name: str, text: str) -> None:
        """Show in one line how a lineage beside the default one does."""
        self._lineages[name] = text
        self._progress_line(f"lineage {name}", f"{name}: {text}")

    def summary(self, report: Mapping[str, Any]) -> None:
        """Show the key figures of report.json as a table."""
        self.close()
        self._print_pairs("summary", summary_rows(report))

    @hookimpl
    def aurora_run_started(self, config: RunConfig, run_dir: str) -> None:
        self._phase = "serving"
        if self._is_live:
            self._live = Live(
                get_renderable=lambda: self, console=self._console, refresh_per_second=4
            )
            self._live.start()
            # While it is drawn, sys.stderr writes above the panel; a handler made earlier holds
            # the real stream and would write into it.
            for handler in logging.root.handlers:
                if type(handler) is logging.StreamHandler and handler.stream is sys.__stderr__:
                    handler.setStream(sys.stderr)
                    self._rerouted.append(handler)

    @hookimpl
    def aurora_requests_finished(self, requests: list[RequestStats]) -> None:
        for request in requests:
            self._series.add(
                request, live_version=self._live_version, newest_version=self._newest_version
            )
            live = is_live(request, self._live_version)
            (self._recent if live else self._recent_plain).append(request)
        self._num_requests += len(requests)
        self._progress_line("requests", self._requests_text())

    @hookimpl
    def aurora_learner_progress(self, step: int, metrics: dict[str, float]) -> None:
        self._learner_step, self._learner_state = step, "learning"
        self._learner_metrics.update(metrics)
        self._progress_line("learner", f"learner: {self._learner_text()}")

    @hookimpl
    def aurora_draft_published(self, draft: DraftVersion) -> None:
        self._newest_version = max(self._newest_version, draft.version)
        self._line(
            f"published version {draft.version} (step {draft.global_step:,}, "
            f"{draft.num_tokens_trained:,} tokens trained)"
        )

    @hookimpl
    def aurora_swap_decided(
        self, draft: DraftVersion, verdict: Verdict, evidence: Evidence
    ) -> None:
        action = verdict.action.replace("_", " ")
        self._verdict = f"{action} version {draft.version}: {verdict.reason}"
        self._line(
            f"verdict: {self._verdict}",
            markup=f"[{ACTION_STYLES.get(verdict.action, 'cyan')}]{action}[/] version "
            f"{draft.version}: {escape(verdict.reason)}",
        )

    @hookimpl
    def aurora_draft_swapped(
        self, draft: DraftVersion | None, previous: DraftVersion | None, receipt: SwapReceipt
    ) -> None:
        self._live_version = receipt.version
        self._num_swaps += 1
        text = (
            f"{version_name(receipt.version)} is live after "
            f"{version_name(NO_DRAFTER if previous is None else previous.version)}"
        )
        # An engine that changes by itself stops for nothing.
        stall = f"; decoding stood still for {receipt.stall_ms:.1f} ms" if receipt.stall_ms else ""
        self._line(text + stall)

    def __rich__(self) -> Panel:
        """Draw the panel; rich calls this from its refresh thread."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold")
        grid.add_column()
        trend = [window.acceptance_length for _, window in self._series.windows(32)]
        drawn = sparkline([value for value in trend if value is not None], self._encoding)
        length = acceptance_length_of(tuple(self._recent))
        grid.add_row("requests", escape(self._requests_text()))
        grid.add_row("acceptance length", f"[bold cyan]{length:.2f}[/]  [cyan]{drawn}[/]")
        grid.add_row("learner", escape(self._learner_text()))
        live = f"{version_name(self._live_version)}, swapped {count(self._num_swaps, 'time')}"
        grid.add_row("live", f"[bold]{live}[/]")
        grid.add_row("last verdict", escape(self._verdict or "none yet"))
        for name, text in tuple(self._lineages.items()):
            grid.add_row(escape(name), escape(text))
        elapsed = int(time.monotonic() - self._started)
        title = f"aurora: {self._phase}, {elapsed // 60}:{elapsed % 60:02d}"
        return Panel(Group(grid), title=title, title_align="left", border_style="cyan")

    @property
    def _encoding(self) -> str:
        return self._console.encoding

    def _requests_text(self) -> str:
        # Copies: rich draws on a thread of its own, and a deque must not grow while it is read.
        recent, plain = tuple(self._recent), tuple(self._recent_plain)
        return describe_requests(
            self._count_requests(),
            self._wanted_requests,
            live_otps=mean_otps(recent),
            plain_otps=mean_otps(plain),
            length=None if self._is_live else acceptance_length_of(recent),
            live_version=None if self._is_live else self._live_version,
        )

    def _learner_text(self) -> str:
        return describe_learner(
            self._learner_state,
            self._learner_step,
            loss=self._learner_metrics.get("train/loss"),
            staleness=self._learner_metrics.get("train/staleness"),
            behind=max(0, self._newest_version - max(self._live_version, 0)),
        )

    def _line(self, text: str, *, markup: str | None = None) -> None:
        elapsed_s = time.monotonic() - self._started
        if self._is_live:
            self._console.print(f"[dim]{elapsed_s:7.1f} s[/]  {markup or escape(text)}")
            return
        with contextlib.suppress(OSError):  # a reader that left, a full disk
            self._console.file.write(f"[{elapsed_s:7.1f} s] {text}\n")
            self._console.file.flush()

    def _progress_line(self, subject: str, text: str) -> None:
        """Write a plain line unless one about the same subject was written a moment ago."""
        now = time.monotonic()
        last = self._last_lines.get(subject)
        if self._is_live or (last is not None and now - last < PLAIN_INTERVAL_S):
            return
        self._last_lines[subject] = now
        self._line(text)

    def _print_pairs(self, title: str, pairs: Sequence[tuple[str, str]]) -> None:
        if self._is_live:
            table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
            table.add_column(style="cyan", no_wrap=True)
            table.add_column(overflow="fold")
            for name, value in pairs:
                table.add_row(escape(name), escape(value))
            self._console.print(table)
            return
        width = max(len(name) for name, _ in pairs)
        lines = [title, *(f"  {name:<{width}}  {value}" for name, value in pairs)]
        with contextlib.suppress(OSError):
            self._console.file.write("\n".join(lines) + "\n")
            self._console.file.flush()
