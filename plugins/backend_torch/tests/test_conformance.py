"""The embedded engine passes the suite that every backend has to pass, as a process of its own."""

from __future__ import annotations

import pytest

from aurora_backend_torch.backend import TorchBackend
from aurora_backend_torch.config import TorchBackendOptions
from aurora_core.testing.suites import BackendSuite


class TestTorchBackend(BackendSuite):
    @pytest.fixture
    def backend(self) -> TorchBackend:
        return TorchBackend(TorchBackendOptions(num_threads=1, dtype="float32"))
