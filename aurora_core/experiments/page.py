"""report.html of an experiment: curves of every arm, one file, no scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import yaml

from aurora_core.experiments.arms import ARMS
from aurora_core.experiments.summary import ArmSummary, StreamSummary
from aurora_core.experiments.table import tables
from aurora_core.report.drawing import FULL_WIDTH, INK, SERIES, draw, mark
from aurora_core.report.html import render_template, safe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Grey for no speculation, the first colour for what is recommended.
_COLORS = dict(zip(ARMS, (SERIES[place] for place in (4, 1, 5, 3, 0, 2)), strict=True))


def render_page(summaries: Sequence[StreamSummary], settings: Mapping[str, object]) -> str:
    """Return the page.

    Args:
        summaries: one per stream.
        settings: of the experiment, shown as they are.
    """
    sections = [
        {
            "title": f"{summary.stream.capitalize()} stream",
            "plots": _plots(summary),
            "tables": tables(summary),
            "missing": summary.missing,
        }
        for summary in summaries
    ]
    return render_template(
        "experiment.html.j2",
        title="Shifts of traffic",
        sections=sections,
        settings=yaml.safe_dump(settings, sort_keys=False),
    )


def _plots(summary: StreamSummary) -> dict[str, str]:
    stream = summary.stream
    plots = {
        f"Acceptance length, windows of {summary.window} requests": draw(
            f"length-{stream}", lambda axes: _curves(axes, summary, "length"), FULL_WIDTH,
            height=4.4,
        ),
        f"Output tokens per second of a request, windows of {summary.window}": draw(
            f"otps-{stream}", lambda axes: _curves(axes, summary, "otps"), FULL_WIDTH, height=4.4
        ),
    }  # fmt: skip
    return {title: safe(svg) for title, svg in plots.items() if svg}


def _curves(axes: Axes, summary: StreamSummary, figure: Literal["length", "otps"]) -> bool:
    drawn = [_curve(axes, arm, figure) for arm in summary.arms]
    if not any(drawn):
        return False
    for place, domain in summary.boundaries:
        mark(axes, place, domain)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))
    axes.set_xlabel("requests of the stream")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=6, labelcolor=INK)
    return True


def _curve(axes: Axes, arm: ArmSummary, figure: Literal["length", "otps"]) -> bool:
    points = [
        ((window.first + window.end) / 2, interval)
        for window in arm.windows
        if (interval := getattr(window, figure)) is not None
    ]
    if not points:
        return False
    places = [place for place, _ in points]
    color = _COLORS[arm.arm]
    axes.plot(
        places, [one.estimate for _, one in points], color=color, marker="o", ms=4, label=arm.label
    )
    axes.fill_between(
        places,
        [one.lower for _, one in points],
        [one.upper for _, one in points],
        color=color,
        alpha=0.12,
        lw=0,
    )
    return True
