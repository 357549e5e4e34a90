"""Medusa passes the suite that every speculator has to pass."""

from __future__ import annotations

import pytest

from aurora_core.records import TargetSpec
from aurora_core.testing.suites import SpeculatorSuite
from aurora_medusa.config import MedusaOptions
from aurora_medusa.speculator import MedusaSpeculator


class TestMedusa(SpeculatorSuite):
    """Heads of their own: one shared block of a tiny target's width cannot learn every answer."""

    @pytest.fixture
    def speculator(self, target: TargetSpec) -> MedusaSpeculator:
        options = MedusaOptions(
            own_heads=True, draft_vocab_size=96, greedy_teacher="argmax", tree="chain"
        )
        return MedusaSpeculator(options, target)


class TestMedusaTrees(SpeculatorSuite):
    @pytest.fixture
    def speculator(self, target: TargetSpec) -> MedusaSpeculator:
        options = MedusaOptions(
            own_heads=True, draft_vocab_size=96, greedy_teacher="argmax", tree="static"
        )
        return MedusaSpeculator(options, target)
