"""A real SGLang server passes the suite that every backend has to pass, and the fake one too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aurora_backend_sglang.backend import SglangBackend
from aurora_backend_sglang.config import SglangBackendOptions
from plugins.backend_sglang.engine_tests.running_server import SERVER_PATH
from plugins.backend_sglang.tests.server_contract import SglangServerContract

pytestmark = pytest.mark.sglang


class TestRealServer(SglangServerContract):
    @pytest.fixture
    def backend(self) -> SglangBackend:
        return SglangBackend(
            SglangBackendOptions(
                python=Path(os.environ["AURORA_SGLANG_PYTHON"]),
                device="cpu",
                dtype="float32",
                feature_dtype="float32",
                max_total_tokens=4096,
                max_running_requests=16,
                # What comes from the cache has no rows, and the suite asks the same again.
                prefix_cache=False,
                environment={"PYTHONPATH": SERVER_PATH},
            )
        )
