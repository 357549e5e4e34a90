"""What a vLLM server with Aurora's half keeps, a real one and the fake one alike.

The suite of every backend, and what the controller relies on in vLLM's routes beside it.
"""

from __future__ import annotations

import pytest

from aurora_backend_vllm.backend import VllmBackend
from aurora_backend_vllm.counters import count
from aurora_core.interfaces import Speculator
from aurora_core.records import DraftVersion, TargetSpec
from aurora_core.target.spec import read_target_spec
from aurora_core.testing.suites import BackendSuite
from aurora_core.testing.suites.backend_fixtures import PROMPTS
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
def vllm_target(tmp_path_factory: pytest.TempPathFactory) -> TargetSpec:
    """A tiny target whose heads are as large as vLLM's kernels for CPUs take."""
    folder = make_tiny_target(
        tmp_path_factory.mktemp("vllm-target"),
        vocab_size=320,
        hidden_size=128,
        sharpness=SHARPNESS,
        seed=3,
    )
    return read_target_spec(folder, name="tiny")


class VllmServerContract(BackendSuite):
    """Subclass it with `backend`, and `records_traces` where there is no model."""

    @pytest.fixture
    def settling_s(self) -> float:
        """The worker is told that a request has ended with its next step."""
        return 20.0

    @pytest.fixture
    def target(self, vllm_target: TargetSpec) -> TargetSpec:
        return vllm_target

    @pytest.fixture
    def plugins(self) -> None:
        """All that are installed where the placeholder is made."""

    @pytest.fixture
    def speculator_name(self) -> str:
        return "eagle3"

    @pytest.fixture
    def speculator(self, target: TargetSpec) -> Speculator:
        return registered_speculator("eagle3", DRAFTING, target)

    @pytest.fixture
    def overfit_learning_rate(self) -> float:
        return 3e-3

    def test_vllms_own_counters_agree(self, served: ServedBackend, draft: DraftVersion) -> None:
        backend = served.backend
        assert isinstance(backend, VllmBackend)
        served.swap(draft)
        served.ask(PROMPTS, max_tokens=20)
        ours, vllms = count(served.finished()), served.run(backend.counters())
        assert not ours.differs_from(vllms), (ours, vllms)
