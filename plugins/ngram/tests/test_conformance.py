"""N-grams pass the suite that every speculator has to pass: the parts that need no training."""

from __future__ import annotations

import pytest

from aurora_core.records import TargetSpec
from aurora_core.testing.suites import SpeculatorSuite
from aurora_ngram.config import NgramOptions
from aurora_ngram.speculator import NgramSpeculator


class TestNgram(SpeculatorSuite):
    @pytest.fixture
    def speculator(self, target: TargetSpec) -> NgramSpeculator:
        return NgramSpeculator(NgramOptions(), target)


class TestNgramTrees(SpeculatorSuite):
    @pytest.fixture
    def speculator(self, target: TargetSpec) -> NgramSpeculator:
        options = NgramOptions(num_branches=3, min_ngram=1, min_confidence=0.0)
        return NgramSpeculator(options, target)
