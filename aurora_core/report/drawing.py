"""One drawing: a small SVG that takes its colours and font from the page it stands on.

Matplotlib draws with marker colours, which are then replaced by CSS variables: one drawing is
right in light and in dark, and stays right when printed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, GRID, PAGE = "#000001", "#000002", "#000003", "#000006"
SERIES = ("#000004", "#000005", "#000007", "#000008", "#000009", "#00000a")
"""Colours of lines, in the order in which they are best told apart."""
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAGE: "--card",
    **dict(
        zip(
            SERIES,
            ("--first", "--second", "--third", "--fourth", "--fifth", "--sixth"),
            strict=True,
        )
    ),
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text and takes the page's font
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
}
FULL_WIDTH, HALF_WIDTH = 1100.0, 520.0


def draw(title: str, plot: Callable[[Axes], bool], width: float, *, height: float = 3.1) -> str:
    """Return the SVG, empty when there is nothing to plot.

    Args:
        title: names the drawing.
        plot: draws; False means that there is nothing to show.
        width: points, about the pixels it is shown with, so that text has its size.
        height: inches.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Ids of two drawings on one page must differ, hence the salt.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(width / 72, height), facecolor="none", layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        if not plot(axes):
            return ""
        axes.margins(x=0.02)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(stream.getvalue(), title)


def mark(axes: Axes, place: float, name: str = "") -> None:
    """Draw an upright line where something happened, with its name beside the upper end.

    Args:
        axes: to draw on.
        place: on the axis of the requests.
        name: empty for the line alone.
    """
    axes.axvline(place, color=MUTED, lw=0.9, ls=(0, (2, 3)), zorder=0)
    if name:
        axes.annotate(
            name,
            (place, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -2),
            textcoords="offset points",
            va="top",
            fontsize=10,
            color=MUTED,
        )


def _inline(svg: str, title: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
    # Names of groups are the same in every drawing, and nothing refers to them.
    used = set(re.findall(r"[(\"]#([^)\"]+)[)\"]", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", svg)
    for marker, variable in _VARIABLES.items():
        svg = svg.replace(marker, f"var({variable})")
    return re.sub(r"\n\s*", "\n", svg)
