"""report.html: one file, no scripts, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from aurora_core.report.history import History
from aurora_core.report.plots import draw_plots


def render_html(report: Mapping[str, Any], history: History) -> str:
    """Return the page.

    Args:
        report: the content of report.json.
        history: the course of the run, for the plots and the verdicts.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("aurora_core.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = _number
    plots = {title: _Safe(svg) for title, svg in draw_plots(history).items()}
    return environment.get_template("report.html.j2").render(
        report=report,
        plots=plots,
        verdicts=list(history.verdicts)[-50:],
        settings=yaml.safe_dump(report["settings"], sort_keys=False),
    )


class _Safe(str):
    """Markup made here, not by users."""

    def __html__(self) -> str:
        return self


def _number(value: float | None, digits: int = 2) -> str:
    return "\u2013" if value is None else f"{value:,.{digits}f}"
