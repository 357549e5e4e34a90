"""What the report is told of each lineage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aurora_core.lineages import shown_name
from aurora_core.report.lineages import LineageFacts

if TYPE_CHECKING:
    from aurora_core.bench import SpeedupReport
    from aurora_core.controller.lineage_run import LineageRun
    from aurora_core.controller.run import Run


def lineage_facts(run: Run) -> tuple[LineageFacts, ...]:
    """Collect the figures of every lineage of a run that ends."""
    measured = {"": run.measurement.reports, **run.measurement.by_lineage}
    return tuple(_facts_of(one, measured.get(one.name, ())) for one in run.lineages)


def _facts_of(one: LineageRun, measurements: tuple[SpeedupReport, ...]) -> LineageFacts:
    learner, live = one.learner.record if one.learner else None, one.swapping.live
    kept, shed = one.traces.since_start(kept=0, shed=0)
    return LineageFacts(
        name=shown_name(one.name),
        speculator=one.parts.config.speculator.name,
        history=one.history,
        live_version=live.version if live else None,
        num_failed_swaps=one.swapping.num_failed_swaps,
        traces_kept=kept,
        traces_shed=shed,
        learner_state=learner.state if learner else "none",
        learner_steps=max(learner.step if learner else 0, one.found.num_steps),
        learner_restarts=learner.num_restarts if learner else 0,
        learner_peak_mib=learner.peak_memory_mib if learner else 0.0,
        measurements=measurements,
    )
