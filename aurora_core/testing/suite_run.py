"""Runs suite classes in this process and says what became of every test."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

Outcome = Literal["passed", "failed", "skipped"]

_MODULE = "from aurora_core.testing.suite_run import chosen\n\nglobals().update(chosen())\n"
_chosen: dict[str, type] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """What became of one test of a suite."""

    __test__ = False  # nothing for pytest to collect

    suite: str
    """Name of the class."""
    test: str
    """Name of the test, with its parameters."""
    outcome: Outcome
    detail: str = ""
    """Why it was skipped, or the last line of what failed."""
    report: str = ""
    """The whole failure, for a log."""


def chosen() -> Mapping[str, type]:
    """Return the classes of the run in progress; the module that pytest collects asks for them."""
    return _chosen


def run_suites(
    classes: Mapping[str, type],
    *,
    select: Callable[[str, str], bool] = lambda suite, test: True,
    on_result: Callable[[TestResult], None] = lambda result: None,
) -> list[TestResult]:
    """Run test classes with pytest, silently and without any configuration file.

    Args:
        classes: name that begins with `Test` -> class.
        select: (class name, test name without parameters) -> whether to run it.
        on_result: called after each test.
    """
    _chosen.clear()
    _chosen.update(classes)
    record = _Record(select, on_result)
    with tempfile.TemporaryDirectory(prefix="aurora-conformance-") as folder:
        module = Path(folder, f"test_conformance_{os.getpid()}_{_next_number()}.py")
        module.write_text(_MODULE, encoding="utf-8")
        arguments = [
            *(str(module), "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"),
            # Files of the process stay as they are: its console may show the progress.
            *("--capture", "sys", "--rootdir", folder, "-c", os.devnull, "--import-mode=importlib"),
            *("--basetemp", str(Path(folder, "tmp"))),
        ]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = pytest.main(arguments, plugins=[record])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with status {status}:\n{printed.getvalue()}")
    return record.results


_numbers = iter(range(10**9))


def _next_number() -> int:
    return next(_numbers)


class _Record:
    """A pytest plugin that keeps the outcome of every test."""

    def __init__(
        self, select: Callable[[str, str], bool], on_result: Callable[[TestResult], None]
    ) -> None:
        self.results: list[TestResult] = []
        self._select = select
        self._on_result = on_result
        self._failed: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was selected."""
        items[:] = [
            item
            for item in items
            if isinstance(item, pytest.Function)
            and item.parent is not None
            and self._select(item.parent.name, item.originalname)
        ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the call, or whatever went wrong before or after it."""
        if report.nodeid in self._failed or not (
            report.when == "call" or report.failed or report.skipped
        ):
            return
        outcome: Outcome = report.outcome
        if report.failed:
            self._failed.add(report.nodeid)
            self.results = [r for r in self.results if (r.suite, r.test) != _names(report)]
        suite, test = _names(report)
        detail = ""
        if report.skipped and isinstance(report.longrepr, tuple):
            detail = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash is not None else str(report.longrepr)
            detail = message.splitlines()[0] if message else "failed"
        result = TestResult(
            suite=suite,
            test=test,
            outcome=outcome,
            detail=detail,
            report=report.longreprtext if report.failed else "",
        )
        self.results.append(result)
        self._on_result(result)


def _names(report: pytest.TestReport) -> tuple[str, str]:
    _, suite, test = report.nodeid.split("::", 2)
    return suite, test
