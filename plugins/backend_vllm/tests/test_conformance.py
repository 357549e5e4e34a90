"""A vLLM server passes the suite that every backend has to pass: a real one, and the fake one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aurora_backend_vllm.backend import VllmBackend
from aurora_backend_vllm.config import VllmBackendOptions
from plugins.backend_vllm.tests.server_contract import VllmServerContract

PYTHON = os.environ.get("AURORA_TEST_VLLM", "")


class TestFakeServer(VllmServerContract):
    """Beside the real one, so that the fake cannot come to differ from it unnoticed."""

    @pytest.fixture
    def backend(self, interpreter: Path) -> VllmBackend:
        return VllmBackend(VllmBackendOptions(python=interpreter, stop_timeout_s=5))

    @pytest.fixture
    def records_traces(self) -> bool:
        return False


@pytest.mark.vllm
@pytest.mark.skipif(not PYTHON, reason="needs vLLM's environment: run `make test-vllm`")
class TestRealServer(VllmServerContract):
    @pytest.fixture
    def backend(self) -> VllmBackend:
        return VllmBackend(
            VllmBackendOptions(
                python=Path(PYTHON),
                dtype="float32",
                feature_dtype="float32",
                max_context=256,
                max_running_requests=16,
                num_threads=1,
                # What comes from the cache has no rows, and the suite asks the same again.
                arguments=("--no-enable-prefix-caching",),
            )
        )
