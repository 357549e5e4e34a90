"""What an SGLang server with Aurora's half keeps, a real one and the fake one alike."""

from __future__ import annotations

from typing import ClassVar

import httpx
import pytest

from aurora_backend_sglang.backend import SglangBackend
from aurora_core.testing.suites.served_backend import ServedBackend
from tests.conformance.eagle_server import EagleServerSuite


class SglangServerContract(EagleServerSuite):
    """Beside the suite: what the controller relies on in SGLang's own routes."""

    # A layer more than usual: SGLang can name neither what enters the first, nor the last one.
    target_shape: ClassVar[dict[str, int]] = {"hidden_size": 64, "num_layers": 5}
    confirming_route = "/update_weights_from_tensor"

    @pytest.fixture
    def plugins(self) -> tuple[str, ...]:
        """Of them the engine loads those that are installed beside it."""
        return ("core", "eagle", "sglang")

    def test_control_routes_need_the_token(self, served: ServedBackend) -> None:
        for route in ("set_internal_state", "pause_generation", "begin_weight_update"):
            answer = httpx.post(f"{served.backend.url}/{route}", json={}, timeout=60)
            assert answer.status_code == 401, route

    def test_sglangs_own_metrics_are_told(self, served: ServedBackend) -> None:
        backend = served.backend
        assert isinstance(backend, SglangBackend)
        assert "sglang:" in served.run(backend.metrics())
