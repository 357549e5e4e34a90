"""`aurora plugins check`: whether a plugin keeps the promises of the interfaces it implements."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated

import typer

from aurora_core.errors import PluginError
from aurora_core.plugins import Plugins
from aurora_core.registrations import KINDS, SECTIONS, Kind

if TYPE_CHECKING:
    from aurora_core.testing.suite_run import TestResult

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def check(
    name: Annotated[str, typer.Argument(help="An installed plugin, as `aurora plugins` lists it.")],
    kind: Annotated[
        str | None,
        typer.Option(help=f"Check one kind of component only: {', '.join(SECTIONS.values())}."),
    ] = None,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Print the whole report of every failure.")
    ] = False,
) -> None:
    """Run the conformance kit on a plugin; exit 1 if it breaks a promise."""
    kinds = _kinds(kind)
    if importlib.util.find_spec("pytest") is None:
        raise PluginError(
            "the conformance kit needs pytest, which is not installed; "
            "run: pip install 'aurora-core[testing]'"
        )
    plugins = Plugins()
    plugins.load([name])

    from rich.console import Console

    from aurora_core.testing.installed import suites_of
    from aurora_core.testing.suite_run import run_suites

    suites = suites_of(plugins, plugins.loaded[name], kinds)
    # On the real file: the kit captures what is printed while it runs.
    console = Console(file=typer.get_text_stream("stdout"))
    with console.status(f"checking {name}") as status:
        results = run_suites(
            suites, on_result=lambda result: status.update(f"{result.suite}: {result.test}")
        )
    for suite in suites:
        console.print(_table(suite, [result for result in results if result.suite == suite]))
    failed = [result for result in results if result.outcome == "failed"]
    if traceback:
        for result in failed:
            console.rule(f"{result.suite}: {result.test}")
            console.print(result.report, markup=False, highlight=False)
    console.print(_summary(name, results))
    raise typer.Exit(1 if failed else 0)


def _kinds(section: str | None) -> tuple[Kind, ...]:
    if section is None:
        return KINDS
    for kind in KINDS:
        if section in (kind, SECTIONS[kind]):
            return (kind,)
    raise PluginError(
        f"{section!r} is no kind of component; choose one of {', '.join(SECTIONS.values())}"
    )


def _table(suite: str, results: list[TestResult]) -> object:
    from rich.markup import escape
    from rich.table import Table

    table = Table("promise", "result", "", title=suite.removeprefix("Test"), title_justify="left")
    for result in results:
        promise = result.test.removeprefix("test_").replace("_", " ")
        style = _STYLES[result.outcome]
        outcome = f"[{style}]{result.outcome}[/{style}]"
        table.add_row(escape(promise), outcome, escape(result.detail))
    return table


def _summary(name: str, results: list[TestResult]) -> str:
    counts = {
        outcome: sum(result.outcome == outcome for result in results)
        for outcome in ("passed", "failed", "skipped")
    }
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    return f"{name}: {text or 'nothing to check'}"
