"""How far a replay or a benchmark has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINE_EVERY_S = 5.0


class ProgressDisplay:
    """Context manager around a long loop; call `advance` for each thing done."""

    def __init__(
        self, title: str, *, total: int | None, unit: str = "requests", console: Console
    ) -> None:
        """Prepare a display.

        Args:
            title: what is going on.
            total: how many things there are to do; None if nobody knows.
            unit: what they are called in plain lines.
            console: where to write; its `is_terminal` decides between a bar and lines.
        """
        self.title, self.total, self.unit, self.console = title, total, unit, console
        self.num_done = 0
        self._last_line = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[status]}"),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task(self.title, total=self.total, status="")
            self._bar.start()
        return self

    def advance(self, status: str = "") -> None:
        """Count one thing as done and show a few words beside the count."""
        self.num_done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, status=status)
        elif time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            of_total = f"/{self.total}" if self.total is not None else ""
            line = f"{self.title}: {self.num_done}{of_total} {self.unit}"
            self.console.print(f"{line}, {status}" if status else line, soft_wrap=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
