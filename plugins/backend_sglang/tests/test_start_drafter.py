"""The checkpoint that SGLang is started with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aurora_backend_sglang.start_drafter import prepare_drafter
from aurora_core.errors import CheckpointError
from aurora_core.interfaces import ServePlan


def test_a_residual_that_sglang_does_not_know_is_refused(plan: ServePlan, tmp_path: Path) -> None:
    """It would serve such a drafter without a word, and accept next to nothing."""
    assert plan.initial_version is not None
    checkpoint = Path(plan.initial_version.path)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"norm_before_residual": True}))
    with pytest.raises(CheckpointError, match="has norm_before_residual, which SGLang does not"):
        prepare_drafter(checkpoint, tmp_path / "drafter", plan)
    assert not (tmp_path / "drafter").exists()
