"""The suite that every speculator has to pass, from Aurora's conformance kit.

One fixture is all it needs. What it promises in return: training and drafting agree token by token,
an answer learned by heart is accepted whole, checkpoints are strict, batches change nothing.
"""

from __future__ import annotations

import pytest

from aurora_core.records import TargetSpec
from aurora_core.testing.suites import SpeculatorSuite
from aurora_mlp_speculator.speculator import MlpOptions, MlpSpeculator


class TestMlp(SpeculatorSuite):
    @pytest.fixture
    def speculator(self, target: TargetSpec) -> MlpSpeculator:
        return MlpSpeculator(MlpOptions(), target)


class TestMlpWithFewTokens(SpeculatorSuite):
    """A cut vocabulary, and chains that always go to full depth."""

    @pytest.fixture
    def speculator(self, target: TargetSpec) -> MlpSpeculator:
        return MlpSpeculator(MlpOptions(draft_vocab_size=96, min_confidence=0.0), target)
