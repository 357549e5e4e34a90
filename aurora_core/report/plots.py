"""The plots of the report of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from aurora_core.records import NO_DRAFTER
from aurora_core.report.drawing import FULL_WIDTH, HALF_WIDTH, INK, PAGE, SERIES, draw, mark
from aurora_core.report.history import History, SwapEvent
from aurora_core.report.holdout import acceptance_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import Locator

FIRST, SECOND = SERIES[:2]
_NUM_WINDOWS = 60
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
        title: draw(title, plot, FULL_WIDTH if index == 0 else HALF_WIDTH)
        for index, (title, plot) in enumerate(plots.items())
    }
    return {title: svg for title, svg in drawn.items() if svg}


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
        name = "off" if swap.version == NO_DRAFTER else f"v{swap.version}"
        mark(axes, swap.num_requests, name if named and index % every == 0 else "")


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
