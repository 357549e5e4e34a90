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
PARTS = ("fixtures", "drafting", "learning", "supervision", "checkpoint", "serving", "tree")
pytest.register_assert_rewrite(*(f"{__name__}.speculator_{part}" for part in PARTS))

from aurora_core.testing.suites.speculator import SpeculatorSuite  # noqa: E402 - see above

__all__ = ["SpeculatorSuite"]
