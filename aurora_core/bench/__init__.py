"""`aurora bench`: what speculation is worth on a server, against the same server without it."""

from __future__ import annotations

from aurora_core.bench.command import bench_command
from aurora_core.bench.figures import BatchFigures, ConfigFigures, Speedup
from aurora_core.bench.measure import (
    BenchReport,
    SpeedupReport,
    compare_drafters,
    measure_speedup,
    run_bench,
)

__all__ = [
    "BatchFigures",
    "BenchReport",
    "ConfigFigures",
    "Speedup",
    "SpeedupReport",
    "bench_command",
    "compare_drafters",
    "measure_speedup",
    "run_bench",
]
