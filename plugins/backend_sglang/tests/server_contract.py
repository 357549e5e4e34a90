"""What an SGLang server with Aurora's half keeps, a real one and the fake one alike.

The suite of every backend, and what the controller relies on in SGLang's routes beside it.
"""

from __future__ import annotations

import httpx
import pytest

from aurora_backend_sglang.backend import SglangBackend
from aurora_core.interfaces import Speculator
from aurora_core.records import TargetSpec
from aurora_core.target.spec import read_target_spec
from aurora_core.testing.suites import BackendSuite
from aurora_core.testing.suites.material import SHARPNESS
from aurora_core.testing.suites.registered import registered_speculator
from aurora_core.testing.suites.served_backend import ServedBackend
from aurora_core.testing.tiny_target import make_tiny_target

DRAFTING = {
    "draft_vocab_size": 192,
    "training_steps": 3,
    "greedy_teacher": "argmax",
    "min_confidence": 0.0,
    "export_dtype": "float32",
}


@pytest.fixture(scope="session")
def sglang_target(tmp_path_factory: pytest.TempPathFactory) -> TargetSpec:
    """A tiny target with a layer more, since SGLang does not name the first and the last one."""
    folder = make_tiny_target(
        tmp_path_factory.mktemp("sglang-target"),
        hidden_size=64,
        num_layers=5,
        sharpness=SHARPNESS,
        seed=3,
    )
    return read_target_spec(folder, name="tiny")


class SglangServerContract(BackendSuite):
    """Subclass it with `backend`, and `records_traces` where there is no model."""

    @pytest.fixture
    def settling_s(self) -> float:
        """The scheduler tells the server of tokens first, and looks after its batch then."""
        return 20.0

    @pytest.fixture
    def target(self, sglang_target: TargetSpec) -> TargetSpec:
        return sglang_target

    @pytest.fixture
    def plugins(self) -> tuple[str, ...]:
        return ("core", "eagle", "sglang")

    @pytest.fixture
    def speculator_name(self) -> str:
        return "eagle3"

    @pytest.fixture
    def speculator(self, target: TargetSpec) -> Speculator:
        return registered_speculator("eagle3", DRAFTING, target)

    @pytest.fixture
    def overfit_learning_rate(self) -> float:
        return 3e-3

    def test_control_routes_want_the_token(self, served: ServedBackend) -> None:
        for route in ("set_internal_state", "pause_generation", "begin_weight_update"):
            answer = httpx.post(f"{served.backend.url}/{route}", json={}, timeout=60)
            assert answer.status_code == 401, route

    def test_sglangs_own_metrics_are_told(self, served: ServedBackend) -> None:
        backend = served.backend
        assert isinstance(backend, SglangBackend)
        assert "sglang:" in served.run(backend.metrics())
