"""The speculator without weights: its contract, replay and checkpoints."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from aurora_core.errors import CheckpointError, ConfigError
from aurora_core.records import Needs
from aurora_ngram.config import NgramOptions
from plugins.ngram.tests.conftest import answer, request


def test_it_asks_for_nothing_and_trains_nothing(make_speculator):
    speculator = make_speculator()
    assert speculator.trainable is False
    assert speculator.needs == Needs()
    # Reads no weight: there is no target behind the description.
    module = speculator.build_module(None, ())
    assert list(module.parameters()) == []
    with pytest.raises(ConfigError, match="no weights and no loss"):
        speculator.loss(module, {})


def test_it_names_the_shape_that_it_is_configured_for(make_speculator):
    assert make_speculator().topologies == {"chain"}
    assert make_speculator(num_branches=2).topologies == {"tree"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_ngram": 5, "max_ngram": 4}, "`max_ngram` 4 is below `min_ngram` 5"),
        ({"min_ngram": 0}, "min_ngram"),
        ({"traffic_bytes": "1 KiB"}, "traffic_bytes"),
        ({"max_ngramm": 4}, "max_ngramm"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        NgramOptions.model_validate(options)


def test_its_module_imports_without_torch():
    code = (
        "import sys, aurora_ngram.plugin, aurora_ngram.speculator; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_replay_counts_what_serving_would_accept(make_speculator, make_drafter):
    texts = [[5, 9, 7, 11, 3] * 6, list(range(25)), [1, 2, 3, 4, 5, 20, 1, 2, 3, 4, 5, 21, 22, 23]]
    prompt_lens = [6, 5, 4]
    speculator = make_speculator()
    traces = [
        answer(text, prompt_len=prompt_len)
        for text, prompt_len in zip(texts, prompt_lens, strict=True)
    ]
    accepted, anchors = speculator.acceptance(
        speculator.build_module(None, ()), speculator.collate(traces), 3
    )
    for index, (text, prompt_len) in enumerate(zip(texts, prompt_lens, strict=True)):
        roots = range(prompt_len, len(text) - 3)
        expected = [0, 0, 0]
        for root in roots:
            [proposal] = make_drafter().propose([request(text[: root + 1], depth=3)])
            for depth in range(len(proposal.token_ids)):
                ahead = text[root + 1 : root + 2 + depth]
                expected[depth] += proposal.token_ids[: depth + 1] == ahead
        assert anchors[index] == len(roots)
        assert accepted[index].tolist() == expected
    # At the first roots the match is too short to be sure of more than one or two tokens.
    assert accepted[0].tolist() == [21, 20, 19] and anchors[0] == 21
    assert accepted[1].tolist() == [0, 0, 0]


def test_a_trace_is_replayed_the_same_in_any_batch(make_speculator):
    speculator = make_speculator()
    traces = [answer([1, 2, 3, 4] * 5, prompt_len=3), answer([7, 8, 9] * 9, prompt_len=5)]
    module = speculator.build_module(None, ())
    accepted, anchors = speculator.acceptance(module, speculator.collate(traces), 2)
    for index, trace in enumerate(traces):
        alone, its_anchors = speculator.acceptance(module, speculator.collate([trace]), 2)
        assert torch.equal(alone[0], accepted[index])
        assert its_anchors[0] == anchors[index] > 0


def test_a_checkpoint_is_read_back(make_speculator, tmp_path):
    speculator = make_speculator()
    speculator.save(speculator.build_module(None, ()), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert list(speculator.load(tmp_path, None).state_dict()) == []


def test_a_checkpoint_of_something_else_is_refused(make_speculator, tmp_path):
    speculator = make_speculator()
    module = torch.nn.Module()
    with pytest.raises(CheckpointError, match="cannot be read"):
        speculator.load(tmp_path, None)
    speculator.save(module, tmp_path)
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="holds tensor 'weight'"):
        speculator.load(tmp_path, None)
    speculator.save(module, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"target"', '"another target"'))
    with pytest.raises(CheckpointError, match="for target 'another target', expected"):
        speculator.load(tmp_path, None)
