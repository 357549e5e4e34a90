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
    return render_template(
        "report.html.j2",
        report=report,
        plots={title: safe(svg) for title, svg in draw_plots(history).items()},
        verdicts=list(history.verdicts)[-50:],
        settings=yaml.safe_dump(report["settings"], sort_keys=False),
    )


def render_template(name: str, **content: Any) -> str:
    """Return a page; what it is given is escaped, except markup marked by `safe`.

    Args:
        name: of a template of this package.
        content: what it is filled with.
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
    return environment.get_template(name).render(content)


def safe(markup: str) -> str:
    """Mark text as markup that was made here, not by users."""
    return _Safe(markup)


class _Safe(str):
    """Markup made here, not by users."""

    def __html__(self) -> str:
        return self


def _number(value: float | None, digits: int = 2) -> str:
    return "\u2013" if value is None else f"{value:,.{digits}f}"
