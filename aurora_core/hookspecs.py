"""Every hook Aurora calls, in calling order.

Registration hooks name components and build nothing. They run in every process that loads plugins:
the command line, the controller, the engine and the learner. An exception in one marks the plugin
as broken.

The rest are notifications whose return value is ignored. Most run in the controller of `aurora run`
alone, synchronously, on the event loop's thread: keep them short. An exception is logged and
counted.

Implementations may accept fewer arguments and give them no defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aurora_core import hookspec

if TYPE_CHECKING:
    import typer

    from aurora_core.config import RunConfig
    from aurora_core.doctor import Finding
    from aurora_core.records import (
        DraftVersion,
        Evidence,
        Registration,
        RequestStats,
        SwapReceipt,
        Verdict,
    )


@hookspec
def aurora_register_speculators() -> Iterable[Registration]:  # type: ignore[empty-body]
    """Name the drafter algorithms this plugin provides."""


@hookspec
def aurora_register_backends() -> Iterable[Registration]:  # type: ignore[empty-body]
    """Name the serving engines this plugin provides."""


@hookspec
def aurora_register_trace_sinks() -> Iterable[Registration]:  # type: ignore[empty-body]
    """Name the trace sinks this plugin provides."""


@hookspec
def aurora_register_swap_policies() -> Iterable[Registration]:  # type: ignore[empty-body]
    """Name the swap policies this plugin provides."""


@hookspec
def aurora_register_commands(app: typer.Typer) -> None:
    """Add subcommands to the `aurora` command line.

    Args:
        app: the root Typer application; use `@app.command()`.
    """


@hookspec
def aurora_examine_environment(findings: list[Finding]) -> None:
    """Called by `aurora doctor`: add a line for everything that this plugin needs and may lack.

    Args:
        findings: to append to. `limited` is the worst that a plugin says: `cannot` is for what
            keeps the quickstart from running.
    """


@hookspec
def aurora_run_started(config: RunConfig, run_dir: str) -> None:
    """Called once, when the engine answers and before the first request.

    Args:
        config: the resolved configuration; immutable.
        run_dir: absolute path; a plugin may write below `run_dir/<its name>/`.
    """


@hookspec
def aurora_requests_finished(requests: list[RequestStats]) -> None:
    """Called about once a second with the requests that finished since the last call."""


@hookspec
def aurora_learner_progress(step: int, metrics: dict[str, float], lineage: str) -> None:
    """Called with a learner's metrics, at most once a second.

    Args:
        step: optimizer steps so far.
        metrics: names with a slash, for example `train/loss`, `train/num_tokens`.
        lineage: whose learner; empty for the default lineage, as in the following hooks.
    """


@hookspec
def aurora_draft_published(draft: DraftVersion, lineage: str) -> None:
    """Called when a version is complete on disk, before it is judged."""


@hookspec
def aurora_swap_decided(
    draft: DraftVersion, verdict: Verdict, evidence: Evidence, lineage: str
) -> None:
    """Called with the decisions on a version, holds included.

    A hold that repeats the one before on the same version is not announced again, nor is that a
    live version under review stays. A swap that the engine refused is announced as a hold.
    """


@hookspec
def aurora_draft_swapped(
    draft: DraftVersion | None,
    previous: DraftVersion | None,
    receipt: SwapReceipt,
    lineage: str,
) -> None:
    """Called when the engine confirmed that `draft` is live; None means no speculation.

    Also when it was found to have changed by itself, as it does when a drafter fails: the times in
    the receipt are 0 then.
    """


@hookspec
def aurora_run_finished(report: dict[str, object] | None, error: BaseException | None) -> None:
    """Called once, after the engine stopped.

    Args:
        report: what report.json holds; None if the run ended before there was one.
        error: None on a clean end.
    """
