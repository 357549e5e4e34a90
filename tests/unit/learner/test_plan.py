from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aurora_core.errors import ConfigError
from aurora_core.learner.plan import read_plan, write_plan
from aurora_core.records import TargetSpec
from aurora_core.testing.toy_run import make_toy_plan


def test_a_plan_survives_the_file(target: TargetSpec, tmp_path: Path) -> None:
    plan = make_toy_plan(tmp_path, target, speculator_options={"num_steps": 2}, max_steps=7)
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


def test_a_missing_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner plan '.*plan.json' cannot be read: No such"):
        read_plan(tmp_path / "plan.json")


def test_a_file_that_is_no_plan_names_what_is_wrong(target: TargetSpec, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"is not a learner plan: the whole file: Invalid JSON"):
        read_plan(path)
    write_plan(make_toy_plan(tmp_path, target), path)
    path.write_text(path.read_text().replace('"batch_traces":4', '"batch_traces":0'))
    with pytest.raises(ConfigError, match=r"is not a learner plan: learner.batch_traces: .*than"):
        read_plan(path)


def test_plan_and_protocol_import_without_torch() -> None:
    program = (
        "import sys, aurora_core.learner.plan, aurora_core.learner.protocol;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
