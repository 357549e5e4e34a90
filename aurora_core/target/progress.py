"""Progress of long work on a target: a callable that reports, and a bar that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn


class ReportProgress(Protocol):
    """Told what is going on, a few times a second."""

    def __call__(self, stage: str, completed: int, total: int | None) -> None:
        """Show that `completed` of `total` bytes of a stage are done; total None is unknown."""


def silent(stage: str, completed: int, total: int | None) -> None:
    """Show nothing."""


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[ReportProgress]:
    """Show one bar, of the latest stage, on standard error while the context is open.

    On a terminal the bar is live; elsewhere each stage is one line when it begins.
    """
    shown = console or Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=shown,
        transient=True,
        disable=not shown.is_terminal,
    ) as bars:
        task = bars.add_task("", visible=False)
        current = ""

        def report(stage: str, completed: int, total: int | None) -> None:
            nonlocal current
            if stage != current:
                current = stage
                bars.reset(task, description=stage, visible=True)
                if not shown.is_terminal:
                    shown.print(stage, highlight=False)
            bars.update(task, completed=completed, total=total)

        yield report
