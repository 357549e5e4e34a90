"""Conformance suites: subclass one, override its one required fixture, run pytest.

    class TestMine(SpeculatorSuite):
        @pytest.fixture
        def speculator(self, target):
            return MySpeculator(MyOptions(), target)

Needs the extra `testing`. `docs/plugins/conformance.md` lists fixtures and promises.
"""

import importlib.util

if importlib.util.find_spec("pytest") is None:
    raise ImportError("the conformance suites need pytest; install aurora-core[testing]")

import pytest

# Before they are imported, so that a failed promise shows both sides of its comparison.
SPECULATOR_PARTS = (
    "fixtures",
    "drafting",
    "sampling",
    "learning",
    "supervision",
    "checkpoint",
    "serving",
    "tree",
)
BACKEND_PARTS = ("fixtures", "lifecycle", "swapping", "output", "learning", "lineages")
pytest.register_assert_rewrite(
    *(f"{__name__}.speculator_{part}" for part in SPECULATOR_PARTS),
    *(f"{__name__}.backend_{part}" for part in BACKEND_PARTS),
    *(f"{__name__}.{kind}" for kind in ("trace_sink", "swap_policy")),
)

# ruff: noqa: E402 - see above
from aurora_core.testing.suites.backend import BackendSuite
from aurora_core.testing.suites.speculator import SpeculatorSuite
from aurora_core.testing.suites.swap_policy import SwapPolicySuite
from aurora_core.testing.suites.trace_sink import TraceSinkSuite

__all__ = ["BackendSuite", "SpeculatorSuite", "SwapPolicySuite", "TraceSinkSuite"]
