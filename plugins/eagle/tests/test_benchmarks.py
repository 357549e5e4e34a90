"""The scripts in benchmarks/ measure what they say."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from aurora_core.records import Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.trace_file import write_trace
from aurora_eagle.collate import Batch
from aurora_eagle.speculator import Eagle3Speculator
from aurora_eagle.training import compute_loss
from plugins.eagle.tests.tree_traces import with_branches

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    return lambda name: __import__(name)


@pytest.fixture(scope="module")
def traces(make_trace: Callable[..., Trace], target_model: PreTrainedModel) -> list[Trace]:
    return [
        with_branches(make_trace(seed, num_response=12), target_model, seed=seed)
        for seed in range(8)
    ]


def test_branches_as_sequences_of_their_own_have_the_loss_and_gradients_of_the_tree(
    script: Callable[[str], ModuleType],
    make_speculator: Callable[..., Eagle3Speculator],
    weights: TargetWeights,
    traces: list[Trace],
) -> None:
    speculator = make_speculator(objective="branches", branch_floor=1.0, training_steps=4)
    torch.manual_seed(0)
    network = speculator.build_module(weights, traces)
    tree = Batch.from_dict(speculator.collate(traces[:2]))
    chains = script("tree_training_cost").separate(tree)
    assert len(chains.token_ids) > 20
    one = compute_loss(network, tree, speculator.options)
    other = compute_loss(network, chains, make_speculator(training_steps=4).options)
    torch.testing.assert_close(one.loss_sum, other.loss_sum)
    torch.testing.assert_close(one.weight_sum, other.weight_sum)
    for mine, theirs in zip(
        torch.autograd.grad(one.loss_sum, list(network.parameters())),
        torch.autograd.grad(other.loss_sum, list(network.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_shares_are_means_over_seeds_of_sums_over_traces(
    script: Callable[[str], ModuleType],
) -> None:
    table = script("ablation_table")
    runs = [
        table.Run("kl", 0, [[4, 2], [0, 0]], [4, 6], 1.0),
        table.Run("kl", 1, [[4, 4], [6, 6]], [4, 6], 1.0),
    ]
    shares = table.resampled_shares(runs, 200)
    assert shares[0].tolist() == pytest.approx([(0.4 + 1.0) / 2, (0.2 + 1.0) / 2])
    assert table.acceptance_lengths(shares, 2)[0] == pytest.approx(2.3)
    # Two traces: a resample has the first twice, the second twice, or each once.
    assert set(np.round(shares[1:, 0], 6)) == {1.0, 0.7, 0.5}
    found = table.estimate(shares[:, 0])
    assert (found.mean, found.low, found.high) == pytest.approx((0.7, 0.5, 1.0))


def test_ablation_goes_on_where_it_was_interrupted_and_refuses_other_settings(
    script: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    target_path: Path,
    traces: list[Trace],
) -> None:
    ablation = script("ablation")
    (tmp_path / "spool").mkdir()
    for index, trace in enumerate(traces):
        write_trace(trace, tmp_path / "spool" / f"{index}.safetensors")

    def run(*changes: str) -> dict[str, object]:
        folders = [
            "--traces",
            tmp_path / "spool",
            "--target",
            target_path,
            "--out",
            tmp_path / "out",
        ]
        size = ["--steps", "2", "--batch", "2", "--held-out-share", "4", "--draft-vocab-size", "64"]
        seeds = ["--seeds", "0", "1"]
        command = ["ablation", *folders, *size, *seeds, "--arms", *changes]
        monkeypatch.setattr(sys, "argv", [str(part) for part in command])
        ablation.main()
        return json.loads((tmp_path / "out" / "ablation.json").read_text())

    first = run("kl")
    times = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out/runs").iterdir()}
    assert set(times) == {"kl-0.json", "kl-1.json"}
    both = run("kl", "discard 1")
    assert both["arms"]["kl"] == first["arms"]["kl"]
    files = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out/runs").iterdir()}
    assert files.items() > times.items()
    assert set(both["arms"]["discard 1"]["differences"]) == {"3", "5", "8"}
    assert "| discard 1 | 2 |" in (tmp_path / "out" / "ablation.md").read_text()
    with pytest.raises(SystemExit, match=r"kl-0.json was made with other settings"):
        run("kl", "--steps", "3")


def test_ablation_without_rejected_rows_says_what_to_do(
    script: Callable[[str], ModuleType], tmp_path: Path, make_trace: Callable[..., Trace]
) -> None:
    write_trace(make_trace(1), tmp_path / "0.safetensors")
    settings = argparse.Namespace(traces=tmp_path, limit=None, held_out_share=8, batch=4)
    with pytest.raises(SystemExit, match=r"holds 0 traces .* gather_traces.py"):
        script("ablation").split(settings)
