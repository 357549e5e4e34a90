"""Registration, options, needs, independent heads, and the three target families."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from aurora_core.learner.draft_vocabulary import choose_target_ids
from aurora_core.learner.muon import split_parameters
from aurora_core.records import TargetSpec, Trace
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.tiny_target import FAMILIES, make_tiny_target
from aurora_core.testing.traces import make_trace as make_random_trace
from aurora_medusa import plugin
from aurora_medusa.config import MedusaOptions
from aurora_medusa.speculator import MedusaSpeculator

Make = Callable[..., MedusaSpeculator]


def test_registration_names_an_importable_class() -> None:
    (registration,) = plugin.aurora_register_speculators()
    module, _, name = registration.target.partition(":")
    assert registration.name == "medusa"
    assert getattr(__import__(module, fromlist=[name]), name) is MedusaSpeculator


def test_plugin_and_speculator_import_without_torch() -> None:
    code = (
        "import sys; import aurora_medusa.plugin, aurora_medusa.speculator; "
        "import aurora_medusa.candidate_tree; sys.exit('torch' in sys.modules)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ValidationError, match="medusa_choices"):
        MedusaOptions.model_validate({"medusa_choices": []})


def test_no_layer_but_the_last_is_recorded_and_no_rejected_row(
    speculator: MedusaSpeculator,
) -> None:
    needs = speculator.needs
    assert needs.features == {"last_hidden_state", "target_logsumexp"}
    assert (needs.aux_layers, needs.branch_rows) == ((), False)


@pytest.mark.parametrize(
    ("tree", "topologies"),
    [("chain", {"chain"}), ("static", {"chain", "tree"}), ("adaptive", {"chain", "tree"})],
)
def test_topologies_follow_the_option(
    make_speculator: Make, tree: str, topologies: set[str]
) -> None:
    assert make_speculator(tree=tree).topologies == topologies


@pytest.mark.parametrize("own_heads", [False, True])
def test_heads_share_no_storage_and_every_one_learns(
    make_speculator: Make,
    weights: TargetWeights,
    make_trace: Callable[..., Trace],
    train: Callable[..., torch.nn.Module],
    own_heads: bool,
) -> None:
    speculator = make_speculator(num_blocks=2, own_heads=own_heads)
    traces = [make_trace(1)]
    network = speculator.build_module(weights, traces)
    spans = sorted(
        (parameter.data_ptr(), parameter.data_ptr() + parameter.nbytes)
        for parameter in [*network.parameters(), weights.lm_head]
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    train(speculator, network, speculator.collate(traces), num_steps=1)
    changed = dict(network.named_parameters())
    assert all(not torch.equal(changed[name], tensor) for name, tensor in before.items())
    # Heads are taught different tokens, so that equal starts part at once.
    first, second = (network.blocks[head].layers[0].weight for head in (0, 1))
    assert not torch.equal(first, second)


def test_a_new_drafter_predicts_with_every_head_what_the_target_does(
    speculator: MedusaSpeculator, weights: TargetWeights
) -> None:
    network = speculator.build_module(weights, [])
    hidden = torch.randn(4, 32)
    for read, matrix in zip(network(hidden), network.output_heads, strict=True):
        assert torch.equal(read, hidden)
        assert torch.equal(matrix, weights.lm_head[network.token_map])


def test_neither_checkpoint_nor_optimizer_sees_the_targets_own_tensors(
    speculator: MedusaSpeculator, weights: TargetWeights
) -> None:
    network = speculator.build_module(weights, [])
    names = {name for name, _ in network.named_parameters()} | set(network.state_dict())
    assert not any("head" in name for name in names)
    assert network.target_head.data_ptr() == weights.lm_head.data_ptr()


def test_output_matrices_are_trained_as_heads_and_blocks_as_matrices(
    make_speculator: Make, weights: TargetWeights
) -> None:
    network = make_speculator(own_heads=True).build_module(weights, [])
    matrices, others = split_parameters(network)
    assert {tuple(parameter.shape) for parameter in matrices} == {(32, 32)}
    assert {tuple(parameter.shape) for parameter in others} == {(32,), (96, 32)}


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("tie", [True, False])
def test_a_new_drafter_fits_every_target_family(
    tmp_path: Path, architecture: str, tie: bool
) -> None:
    target = read_target_spec(make_tiny_target(tmp_path, architecture, tie=tie))
    weights = TargetWeights(target)
    speculator = MedusaSpeculator(MedusaOptions(draft_vocab_size=64, num_heads=2), target)
    traces = [
        make_random_trace(
            seed,
            vocab_size=256,
            hidden_size=32,
            features=speculator.needs.features,
            dtype=torch.float32,
            target_fingerprint=target.fingerprint,
        )
        for seed in range(2)
    ]
    network = speculator.build_module(weights, traces)
    assert torch.equal(network.target_head, weights.lm_head)
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    output = speculator.loss(network, speculator.collate(traces))
    output.loss_sum.backward()
    assert torch.isfinite(output.loss_sum)
    speculator.save(network, tmp_path / "draft")
    speculator.load(tmp_path / "draft", weights)


def test_the_draft_vocabulary_holds_what_was_said_and_what_was_expected(
    target: TargetSpec, weights: TargetWeights, make_trace: Callable[..., Trace]
) -> None:
    traces = [make_trace(seed, num_response=30) for seed in (1, 2)]
    chosen = choose_target_ids(traces, weights.lm_head, size=96, vocab_size=target.vocab_size)
    assert chosen.tolist() == sorted(set(chosen.tolist())) and len(chosen) == 96
    said = {token for trace in traces for token in trace.token_ids[trace.prompt_len :].tolist()}
    assert said <= set(chosen.tolist())
    alone = choose_target_ids([], weights.lm_head, size=96, vocab_size=target.vocab_size)
    assert alone.tolist() == list(range(96))
    whole = choose_target_ids(traces, weights.lm_head, size=999, vocab_size=target.vocab_size)
    assert whole.tolist() == list(range(256))
