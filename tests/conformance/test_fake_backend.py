"""The simulated engine passes the suite that every backend has to pass."""

from __future__ import annotations

import pytest

from aurora_core.testing.fake_backend import FakeBackend, FakeBackendOptions
from aurora_core.testing.suites import BackendSuite


class TestFakeBackend(BackendSuite):
    @pytest.fixture
    def backend(self) -> FakeBackend:
        return FakeBackend(FakeBackendOptions(step_ms=0.0))

    @pytest.fixture
    def records_traces(self) -> bool:
        return False
