"""The toy speculator passes the suite that every speculator has to pass."""

from __future__ import annotations

import pytest

from aurora_core.records import TargetSpec
from aurora_core.testing.suites import SpeculatorSuite
from aurora_core.testing.toy_speculator import ToyOptions, ToySpeculator


class TestToySpeculator(SpeculatorSuite):
    @pytest.fixture
    def speculator(self, target: TargetSpec) -> ToySpeculator:
        return ToySpeculator(ToyOptions(), target)

    @pytest.fixture
    def overfit_learning_rate(self) -> float:
        return 3e-2
