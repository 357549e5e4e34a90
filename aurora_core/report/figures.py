"""The figures of a report that are worth a chart beside those of other runs.

report.json says everything: settings, software, the course of every version. As metrics of a run
these would be hundreds of charts of one point each; most are logged elsewhere as curves.
"""

from __future__ import annotations

from collections.abc import Mapping

_LEFT_OUT = (
    "schema",
    "seed",  # a parameter of the run, as the settings are
    "settings",
    "settings_digest",
    "target",
    "versions",
    "acceptance_length.published",  # curves of the run and figures of the registered versions
    "learner.metrics",
    "lossless.by_version",
    "lossless.differences",
    "swaps.events",
    "otps.measurements",
)
_PER_POSITION = "acceptance_length.per_position"


def comparable_figures(report: Mapping[str, object]) -> dict[str, object]:
    """Return the report's figures as one level, keys joined by dots, numbers or not.

    Acceptance by draft position becomes `acceptance_at_1`, `acceptance_at_2` and so on.

    Args:
        report: the content of report.json.
    """
    figures = _flatten(report, "")
    positions = figures.pop(_PER_POSITION, None)
    if isinstance(positions, list | tuple):
        figures |= {f"acceptance_at_{one}": rate for one, rate in enumerate(positions, start=1)}
    return figures


def _flatten(value: Mapping[str, object], prefix: str) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, inner in value.items():
        key = f"{prefix}{name}"
        if key in _LEFT_OUT:
            continue
        if isinstance(inner, Mapping):
            flat |= _flatten(inner, f"{key}.")
        else:
            flat[key] = inner
    return flat
