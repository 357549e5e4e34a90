"""The fake SGLang server passes what the real one has to pass (`engine_tests`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from aurora_backend_sglang.backend import SglangBackend
from aurora_backend_sglang.config import SglangBackendOptions
from plugins.backend_sglang.tests.server_contract import SglangServerContract


class TestFakeServer(SglangServerContract):
    @pytest.fixture
    def backend(self, interpreter: Path) -> SglangBackend:
        options = SglangBackendOptions(python=interpreter, device="cpu", stop_timeout_s=5)
        return SglangBackend(options)

    @pytest.fixture
    def records_traces(self) -> bool:
        return False
