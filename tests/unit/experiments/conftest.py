"""Experiments without processes."""

import pytest

from aurora_core.experiments import arm_run
from tests.unit.experiments.hand_made import FakeServing


@pytest.fixture
def serving(monkeypatch):
    """Arms are served by a fake engine in this process."""
    fake = FakeServing()
    monkeypatch.setattr(arm_run, "serve", fake)
    return fake
