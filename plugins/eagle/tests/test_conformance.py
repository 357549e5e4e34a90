"""EAGLE-3 passes the suite that every speculator has to pass."""

from __future__ import annotations

import pytest

from aurora_core.records import TargetSpec
from aurora_core.testing.suites import SpeculatorSuite
from aurora_eagle.config import Eagle3Options
from aurora_eagle.speculator import Eagle3Speculator


class TestEagle3(SpeculatorSuite):
    @pytest.fixture
    def speculator(self, target: TargetSpec) -> Eagle3Speculator:
        options = Eagle3Options(
            draft_vocab_size=96,
            greedy_teacher="argmax",
            min_confidence=0.0,
            min_node_confidence=0.0,
        )
        return Eagle3Speculator(options, target)


class TestEagle3AsConfiguredByDefault(SpeculatorSuite):
    """All of the target's tokens, soft targets, bfloat16 on disk, chains cut when unsure."""

    @pytest.fixture
    def speculator(self, target: TargetSpec) -> Eagle3Speculator:
        return Eagle3Speculator(Eagle3Options(), target)


class TestEagle3Trees(SpeculatorSuite):
    @pytest.fixture
    def speculator(self, target: TargetSpec) -> Eagle3Speculator:
        options = Eagle3Options(
            tree_width=3,
            draft_vocab_size=96,
            greedy_teacher="argmax",
            min_confidence=0.0,
            min_node_confidence=0.0,
        )
        return Eagle3Speculator(options, target)
