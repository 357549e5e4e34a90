"""A new run serves a published drafter from its first request, and exports what it holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from aurora_core.cli import main
from aurora_core.config import RunConfig
from aurora_core.controller import build
from aurora_core.controller.run_directory import RunDirectory
from aurora_core.errors import ConfigError
from aurora_core.plugins import Plugins
from aurora_core.target.weights import TargetWeights
from aurora_core.versions import RunState, read_run_state, write_run_state
from plugins.eagle.tests.published_drafters import draft_tensors, speculators_config, write


@pytest.fixture
def published(weights: TargetWeights, tmp_path: Path) -> Path:
    tensors = draft_tensors(weights, prefix="layers.0.")
    return write(tmp_path / "published", speculators_config(weights), tensors)


@pytest.fixture
def parts(target_path: Path, published: Path, tmp_path: Path) -> build.Parts:
    config = RunConfig.model_validate(
        {
            "target": str(target_path),
            "speculator": {
                "name": "eagle3",
                "start_from": str(published),
                "export_dtype": "float32",
            },
            "backend": "torch",
            "run_dir": str(tmp_path / "run"),
            "num_speculative_tokens": 4,
        }
    )
    plugins = Plugins()
    plugins.load()
    return build.build_parts(config, plugins)


def test_a_published_drafter_is_version_1_and_live(
    parts: build.Parts, published: Path, tmp_path: Path
) -> None:
    directory = RunDirectory(parts.config.run_dir)
    with directory.locked():
        lineage = build.prepare(parts, directory)
        assert lineage.live is not None and lineage.newest_version == 1
        assert (lineage.live.version, lineage.live.parent, lineage.live.global_step) == (1, None, 0)
        assert not list(directory.path.glob(".start-*"))
        plan = build.plan_serving(parts, directory, initial=lineage.live)
        assert plan.initial_version == lineage.live
        assert build.plan_learning(parts, directory, lineage).initial_version == lineage.live
        stored = load_file(Path(lineage.live.path) / "model.safetensors")
        original = load_file(published / "model.safetensors")
        for name, tensor in original.items():
            assert (stored[name.replace("layers.0.", "midlayer.")] == tensor).all(), name

        # A run that goes on does not begin again, not even when a person switched drafts off.
        write_run_state(directory.state, RunState(champion=None, pinned=True))
        assert build.prepare(parts, directory).newest_version == 1
        assert read_run_state(directory.state).champion is None

    document = {"config": parts.config.model_dump(mode="json"), "resolved": {}}
    (directory.path / "resolved.yaml").write_text(yaml.safe_dump(document))
    arguments = ["--run-dir", str(directory.path), "--format", "speculators"]
    assert main(["export", "1", str(tmp_path / "out"), *arguments]) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["norm_before_residual"] is True
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() - {"embed_tokens.weight"} == original.keys()


def test_a_drafter_that_cannot_be_read_ends_the_run_in_a_sentence(
    parts: build.Parts, published: Path
) -> None:
    (published / "model.safetensors").write_bytes(b"12")
    directory = RunDirectory(parts.config.run_dir)
    with (
        directory.locked(),
        pytest.raises(ConfigError, match=r"an EAGLE-3 drafter '.*' cannot be read \("),
    ):
        build.prepare(parts, directory)
    assert not directory.store.numbers() and not directory.state.exists()
