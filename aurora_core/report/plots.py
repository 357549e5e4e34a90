"""The plots of the report: small SVGs that take their colours and font from the page.

Matplotlib draws with marker colours, which are then replaced by CSS variables: one drawing is
right in light and in dark, and stays right when printed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from aurora_core.records import NO_DRAFTER
from aurora_core.report.history import History, SwapEvent
from aurora_core.report.holdout import acceptance_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import Locator

INK, MUTED, GRID, FIRST, SECOND, PAGE = (
    "#000001",
    "#000002",
    "#000003",
    "#000004",
    "#000005",
    "#000006",
)
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    FIRST: "--first",
    SECOND: "--second",
    PAGE: "--card",
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
_NUM_WINDOWS = 60
_FULL_WIDTH, _HALF_WIDTH = 1100.0, 520.0
_MAX_LABELS = 10


def draw_plots(history: History) -> dict[str, str]:
    """Return title -> SVG of every plot that has something to show, in reading order."""
    plots: dict[str, Callable[[Axes], bool]] = {
        "Acceptance length of live requests": lambda axes: _acceptance(axes, history),
        "Output tokens per second of a request": lambda axes: _speed(axes, history),
        "Held-out acceptance length of every published version": lambda axes: _heldout(
            axes, history
        ),
        "Training loss": lambda axes: _loss(axes, history),
        "Staleness: versions published since the one in use": lambda axes: _staleness(
            axes, history
        ),
    }
    drawn = {
        title: _draw(title, plot, _FULL_WIDTH if index == 0 else _HALF_WIDTH)
        for index, (title, plot) in enumerate(plots.items())
    }
    return {title: svg for title, svg in drawn.items() if svg}


def _draw(title: str, plot: Callable[[Axes], bool], width: float) -> str:
    """Return the SVG, empty when there is nothing to plot.

    Args:
        title: names the drawing.
        plot: draws; False means that there is nothing to show.
        width: points, about the pixels it is shown with, so that text has its size.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Ids of two drawings on one page must differ, hence the salt.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(width / 72, 3.1), facecolor="none", layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        if not plot(axes):
            return ""
        axes.margins(x=0.02)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(stream.getvalue(), title)


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


def _acceptance(axes: Axes, history: History) -> bool:
    windows = history.requests.windows(_NUM_WINDOWS)
    points = [(x, value) for x, window in windows if (value := window.acceptance_length)]
    if not points:
        return False
    _line(axes, points, FIRST)
    axes.set_xlabel("finished requests")
    top = max(value for _, value in points)
    axes.set_ylim(min(1.0, *(value for _, value in points)) - 0.03, max(1.5, top * 1.12))
    _mark_swaps(axes, history.swaps)
    return True


def _speed(axes: Axes, history: History) -> bool:
    windows = history.requests.windows(_NUM_WINDOWS)
    live = [(x, value) for x, window in windows if (value := window.live_otps)]
    plain = [(x, value) for x, window in windows if (value := window.plain_otps)]
    if not live:
        return False
    if plain:
        _line(axes, plain, SECOND, label="without speculation")
    _line(axes, live, FIRST, label="live")
    axes.set_xlabel("finished requests")
    axes.set_ylim(0, max(value for _, value in live + plain) * 1.18)
    axes.legend(loc="lower right", ncols=2, labelcolor=INK)
    _mark_swaps(axes, history.swaps)
    return True


def _heldout(axes: Axes, history: History) -> bool:
    promoted = {entry.version for entry in history.verdicts if entry.action == "promote"}
    scored = [
        (draft.version, *acceptance_of(draft.holdout))
        for draft in history.published
        if draft.holdout
    ]
    if not scored:
        return False
    live = [(version, against) for version, _, against in scored if against is not None]
    if live:
        axes.plot(*_columns(live), "_", color=SECOND, ms=12, mew=2, label="live version then")
    for is_promoted, fill, label in ((True, FIRST, "promoted"), (False, PAGE, "held back")):
        points = [(v, c) for v, c, _ in scored if (v in promoted) is is_promoted]
        if points:
            axes.plot(*_columns(points), "o", color=FIRST, mfc=fill, ms=7, mew=1.6, label=label)
    axes.set_xlabel("version")
    axes.xaxis.set_major_locator(_whole_numbers())
    axes.legend(loc="lower right", ncols=3, labelcolor=INK)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.25 * (high - low), high)  # room for the legend
    return True


def _loss(axes: Axes, history: History) -> bool:
    points = history.loss.points
    if not points:
        return False
    axes.plot(*_columns(points), color=FIRST, alpha=0.3, lw=1)
    _line(axes, _smooth(points), FIRST)
    axes.set_xlabel("optimizer steps")
    return True


def _staleness(axes: Axes, history: History) -> bool:
    windows = history.requests.windows(_NUM_WINDOWS)
    served = [(x, window.staleness) for x, window in windows if window.staleness is not None]
    if not served:
        return False
    trained = history.trained_staleness.points
    if trained:
        _line(axes, _smooth(trained), SECOND, label="traces that are learned from")
    _line(axes, served, FIRST, label="requests that are served")
    axes.set_xlabel("finished requests")
    top = max(value for _, value in [*served, *trained])
    axes.set_ylim(-0.05, max(1.5, top * 1.3))
    axes.yaxis.set_major_locator(_whole_numbers())
    axes.legend(loc="upper left", ncols=2, labelcolor=INK)
    _mark_swaps(axes, history.swaps, named=False)
    return True


def _line(axes: Axes, points: Sequence[tuple[float, float]], color: str, **kw: Any) -> None:
    style: dict[str, Any] = {"marker": "o", "ms": 4} if len(points) < 3 else {}
    axes.plot(*_columns(points), color=color, **style, **kw)


def _mark_swaps(axes: Axes, swaps: Sequence[SwapEvent], *, named: bool = True) -> None:
    every = -(-len(swaps) // _MAX_LABELS) or 1
    for index, swap in enumerate(swaps):
        axes.axvline(swap.num_requests, color=MUTED, lw=0.9, ls=(0, (2, 3)), zorder=0)
        if named and index % every == 0:
            name = "off" if swap.version == NO_DRAFTER else f"v{swap.version}"
            axes.annotate(
                name,
                (swap.num_requests, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -2),
                textcoords="offset points",
                va="top",
                fontsize=10,
                color=MUTED,
            )


def _whole_numbers() -> Locator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins="auto", integer=True)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return a centred moving average over about a twentieth of the points."""
    reach = len(points) // 40
    smoothed: list[tuple[float, float]] = []
    for index, (x, _) in enumerate(points):
        near = points[max(0, index - reach) : index + reach + 1]
        smoothed.append((x, sum(y for _, y in near) / len(near)))
    return smoothed
