"""The components of the core pass the suites that those of plugins have to pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from aurora_core.interfaces import Options, SwapPolicy
from aurora_core.policies import (
    AlwaysSwap,
    HoldoutGate,
    HoldoutOptions,
    IntervalOptions,
    IntervalSwap,
)
from aurora_core.spool import SpoolOptions
from aurora_core.spool.sink import SpoolSink
from aurora_core.testing.suites import SwapPolicySuite, TraceSinkSuite


class TestSpool(TraceSinkSuite):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> SpoolSink:
        return SpoolSink(SpoolOptions(path=tmp_path / "spool"))

    @pytest.fixture
    def small_sink(self, tmp_path: Path) -> SpoolSink:
        return SpoolSink(SpoolOptions(path=tmp_path / "spool", max_bytes="512KiB"))


class TestAlways(SwapPolicySuite):
    @pytest.fixture
    def policy(self) -> SwapPolicy:
        return AlwaysSwap(Options())


class TestInterval(SwapPolicySuite):
    @pytest.fixture
    def policy(self) -> SwapPolicy:
        return IntervalSwap(IntervalOptions(min_requests=100, min_seconds=60.0))


class TestGate(SwapPolicySuite):
    @pytest.fixture
    def policy(self) -> SwapPolicy:
        return HoldoutGate(HoldoutOptions())
