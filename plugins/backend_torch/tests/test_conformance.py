"""The embedded engine passes the suite that every backend has to pass, as a process of its own."""

from __future__ import annotations

import pytest

from aurora_backend_torch.backend import TorchBackend
from aurora_backend_torch.config import TorchBackendOptions
from aurora_core.records import TargetSpec
from aurora_core.testing.suites import BackendSuite
from aurora_core.testing.suites.backend_output import OutputPromises
from aurora_core.testing.toy_speculator import ToyOptions, ToySpeculator


def backend_with(*, sample_drafts: bool) -> TorchBackend:
    # Room for drafts in a full batch of eight, siblings included.
    return TorchBackend(
        TorchBackendOptions(
            num_threads=1, dtype="float32", max_verification_rows=64, sample_drafts=sample_drafts
        )
    )


class TestTorchBackend(BackendSuite):
    @pytest.fixture
    def backend(self) -> TorchBackend:
        return backend_with(sample_drafts=False)


class _Sampled(OutputPromises):
    @pytest.fixture
    def backend(self) -> TorchBackend:
        return backend_with(sample_drafts=True)

    @pytest.fixture
    def num_sampled_answers(self) -> int:
        return 320


class TestSampledChains(_Sampled):
    """Drafts are drawn as the request samples, and verified by rejection."""


class TestSampledSiblings(_Sampled):
    """The same with two tokens at each depth."""

    @pytest.fixture
    def speculator(self, target: TargetSpec) -> ToySpeculator:
        return ToySpeculator(ToyOptions(draft_vocab_size=256, num_siblings=2), target)
