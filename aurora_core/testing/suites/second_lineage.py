"""The lineage that the backend suite has beside the default one, where an engine holds several."""

from __future__ import annotations

from pathlib import Path

from aurora_core.interfaces import LineagePlan, ServePlan
from aurora_core.lineages import LineageRule

LINEAGE = "second"
TENANT = "tenant-of-the-second"
"""Whose requests are its own."""


def second_lineage(plan: ServePlan) -> LineagePlan:
    """Return a lineage of the same speculator, with folders of its own."""
    folder = Path(plan.run_dir) / LINEAGE
    return LineagePlan(
        rule=LineageRule(name=LINEAGE, tenants=(TENANT,)),
        speculator=plan.speculator,
        speculator_options=plan.speculator_options,
        needs=plan.needs,
        num_speculative_tokens=plan.num_speculative_tokens,
        versions_dir=str(folder / "versions"),
        initial_version=None,
        sink=plan.sink,
        sink_options={"path": str(folder / "spool")} if plan.sink else {},
    )
