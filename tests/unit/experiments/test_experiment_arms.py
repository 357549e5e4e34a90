"""What arms begin with and what they leave behind."""

from __future__ import annotations

import pytest

from aurora_core.errors import CheckpointError, ConfigError
from aurora_core.experiments.arms import ARMS, clear_away, configure, lay_out
from aurora_core.versions import read_run_state
from tests.unit.experiments.hand_made import make_config, write_versions


@pytest.fixture
def pretrained(tmp_path):
    run_dir = tmp_path / "pretrained"
    write_versions(run_dir, [1, 2, 3], champion=2)
    for name in ("learner/checkpoint", "spool/trace", "logs/engine.log", "verdicts.jsonl"):
        path = run_dir / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    return run_dir


def test_static_arm_has_the_live_drafter_alone_and_nothing_may_replace_it(tmp_path, pretrained):
    run_dir = tmp_path / "static"
    lay_out(ARMS["static"], run_dir, pretrained=pretrained)
    assert [path.name for path in sorted(run_dir.iterdir())] == ["state.json", "versions"]
    assert [path.name for path in (run_dir / "versions").iterdir()] == ["v000002"]
    state = read_run_state(run_dir / "state.json")
    assert state.champion == 2 and state.pinned


def test_online_arm_goes_on_where_pretraining_ended(tmp_path, pretrained):
    run_dir = tmp_path / "gate"
    lay_out(ARMS["gate"], run_dir, pretrained=pretrained)
    found = {path.name for path in run_dir.iterdir()}
    assert found == {"versions", "learner", "spool", "state.json"}
    state = read_run_state(run_dir / "state.json")
    assert (state.champion, state.challenger, state.pinned) == (2, None, False)


@pytest.mark.parametrize("name", ["none", "ngram", "scratch"])
def test_other_arms_begin_with_nothing_whatever_was_left_there(tmp_path, name):
    run_dir = tmp_path / name
    write_versions(run_dir, [7])
    lay_out(ARMS[name], run_dir, pretrained=None)
    assert not run_dir.exists()


def test_pretraining_without_a_live_drafter_is_refused(tmp_path):
    (tmp_path / "pretrained").mkdir()
    with pytest.raises(ConfigError, match="left no drafter live to begin with; pretrain on more"):
        lay_out(ARMS["static"], tmp_path / "static", pretrained=tmp_path / "pretrained")


def test_damaged_drafter_is_refused(tmp_path, pretrained):
    (pretrained / "versions" / "v000002" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(CheckpointError, match="version 2"):
        lay_out(ARMS["static"], tmp_path / "static", pretrained=pretrained)


def test_arms_differ_in_what_they_are_about_and_in_nothing_else(tmp_path):
    config = make_config(tmp_path)
    assert configure(ARMS["gate"], config) == configure(ARMS["scratch"], config) == config
    always = configure(ARMS["always"], config)
    assert always.swap_policy.name == "always"
    assert (always.guard.probation_requests, always.guard.plain_share) == (0, 0.0)
    assert not always.guard.disable_speculation
    assert configure(ARMS["ngram"], config).speculator.name == "ngram"
    assert not ARMS["none"].learns and not ARMS["static"].learns


def test_clearing_away_keeps_records(tmp_path, pretrained):
    clear_away(pretrained)
    assert {path.name for path in pretrained.iterdir()} == {"state.json", "logs", "verdicts.jsonl"}
