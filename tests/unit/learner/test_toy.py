"""The toy keeps the promises of `Speculator` and `Drafter` that other tests rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from aurora_core.errors import CheckpointError, TraceError
from aurora_core.interfaces import Drafter, DraftRequest
from aurora_core.records import Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.toy_speculator import ToySpeculator


@pytest.fixture
def module(speculator: ToySpeculator, weights: TargetWeights, make_trace: Any) -> nn.Module:
    """A drafter that is right about half of the time."""
    torch.manual_seed(0)
    traces = [make_trace(seed) for seed in range(12)]
    module = speculator.build_module(weights, traces)
    optimizer = torch.optim.Adam([w for w in module.parameters() if w.requires_grad], lr=0.02)
    batch = speculator.collate(traces)
    for _ in range(25):
        output = speculator.loss(module, batch)
        optimizer.zero_grad()
        (output.loss_sum / output.weight_sum).backward()
        optimizer.step()
    return module


def request_at(trace: Trace, root: int, num_speculative_tokens: int = 3) -> DraftRequest:
    return DraftRequest(
        request_id=trace.trace_id,
        start=0,
        token_ids=trace.token_ids[: root + 1],
        features={"last_hidden_state": trace.features["last_hidden_state"][:root]},
        num_speculative_tokens=num_speculative_tokens,
        max_nodes=num_speculative_tokens,
    )


def new_drafter(speculator: ToySpeculator, module: nn.Module) -> Drafter:
    return speculator.drafter(module, dtype=torch.float32, device=torch.device("cpu"))


def test_the_drafter_drafts_what_the_replay_counts(
    speculator: ToySpeculator, module: nn.Module, make_trace: Any
) -> None:
    traces = [make_trace(seed, num_tokens=15 + seed) for seed in range(3)]
    accepted, anchors = speculator.acceptance(module, speculator.collate(traces), 3)
    drafter = new_drafter(speculator, module)
    for index, trace in enumerate(traces):
        tokens = trace.token_ids.tolist()
        roots = range(trace.prompt_len, len(tokens) - 1)
        counts = [0, 0, 0]
        for root in roots:
            [proposal] = drafter.propose([request_at(trace, root)])
            for depth in range(3):
                ahead = tokens[root + 1 : root + 2 + depth]
                counts[depth] += list(proposal.token_ids[: depth + 1]) == ahead
        assert accepted[index].tolist() == counts and int(anchors[index]) == len(roots)
    assert 0 < int(accepted[:, 2].sum()) < int(anchors.sum())


def test_proposals_do_not_depend_on_the_batch(
    speculator: ToySpeculator, module: nn.Module, make_trace: Any
) -> None:
    requests = [request_at(make_trace(seed), 10) for seed in range(4)]
    together = new_drafter(speculator, module).propose(requests)
    alone = [new_drafter(speculator, module).propose([request])[0] for request in requests]
    assert together == alone
    assert [proposal.parents for proposal in together] == [[-1, 0, 1]] * 4


def test_a_forgotten_request_has_no_state(
    speculator: ToySpeculator, module: nn.Module, make_trace: Any
) -> None:
    drafter = new_drafter(speculator, module)
    trace = make_trace(0)
    drafter.propose([request_at(trace, 10, num_speculative_tokens=0)])
    nothing_new = DraftRequest(
        request_id=trace.trace_id,
        start=10,
        token_ids=trace.token_ids[10:11],
        features={"last_hidden_state": trace.features["last_hidden_state"][:0]},
        num_speculative_tokens=3,
        max_nodes=3,
    )
    assert len(drafter.propose([nothing_new])[0].token_ids) == 3
    drafter.forget(trace.trace_id)
    drafter.forget("unknown")
    assert drafter.propose([nothing_new])[0].token_ids == []


def test_the_drafter_keeps_its_own_weights(
    speculator: ToySpeculator, module: nn.Module, make_trace: Any
) -> None:
    drafter, request = new_drafter(speculator, module), request_at(make_trace(0), 10)
    before = drafter.propose([request])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert drafter.propose([request]) == before


def test_prompt_and_padding_carry_no_loss_and_the_batch_stays_whole(
    speculator: ToySpeculator, module: nn.Module, make_trace: Any
) -> None:
    short, long = make_trace(0, num_tokens=12), make_trace(1, num_tokens=30)
    batch = speculator.collate([short, long])
    copies = {name: tensor.clone() for name, tensor in batch.items()}
    both = speculator.loss(module, batch)
    assert all(torch.equal(batch[name], copies[name]) for name in copies)
    apart = [speculator.loss(module, speculator.collate([trace])) for trace in (short, long)]
    for field in ("loss_sum", "weight_sum", "num_tokens"):
        total = getattr(apart[0], field) + getattr(apart[1], field)
        assert float(torch.as_tensor(getattr(both, field)).detach()) == pytest.approx(
            float(torch.as_tensor(total).detach()), rel=1e-5
        )
    # The last token has nothing to predict.
    assert both.num_tokens == (12 - 4 - 1) + (30 - 4 - 1)


def test_traces_that_cannot_be_learned_from_are_refused(
    speculator: ToySpeculator, make_trace: Any
) -> None:
    trace = make_trace(0)
    with pytest.raises(TraceError, match="holds 'last_hidden_state' with values that are not fin"):
        speculator.collate([make_trace(1, last_hidden_state=float("nan"))])
    object.__setattr__(trace, "features", {})
    with pytest.raises(TraceError, match="lacks the feature 'last_hidden_state'"):
        speculator.collate([trace])


def test_a_checkpoint_reloads_to_equal_weights(
    speculator: ToySpeculator, module: nn.Module, weights: TargetWeights, tmp_path: Path
) -> None:
    speculator.save(module, tmp_path)
    loaded = speculator.load(tmp_path, weights)
    for (name, one), (other_name, other) in zip(
        module.state_dict().items(), loaded.state_dict().items(), strict=True
    ):
        assert name == other_name and torch.equal(one, other)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda tensors: tensors.pop("cell.bias"), "'cell.bias' missing, extra or misshaped"),
        (lambda tensors: tensors.update(extra=torch.ones(1)), "'extra' missing, extra or missh"),
        (lambda tensors: tensors.update({"cell.bias": torch.ones(3)}), "'cell.bias' missing, ex"),
        (lambda tensors: tensors["cell.bias"].fill_(float("inf")), "values that are not finite"),
    ],
)
def test_a_damaged_checkpoint_is_refused(
    speculator: ToySpeculator,
    module: nn.Module,
    weights: TargetWeights,
    tmp_path: Path,
    damage: Any,
    message: str,
) -> None:
    speculator.save(module, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        speculator.load(tmp_path, weights)


def test_a_checkpoint_of_another_target_is_refused(
    speculator: ToySpeculator, module: nn.Module, weights: TargetWeights, tmp_path: Path
) -> None:
    speculator.save(module, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"target_fingerprint": "other"}))
    with pytest.raises(CheckpointError, match="was made for target 'other', not for"):
        speculator.load(tmp_path, weights)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        speculator.load(tmp_path, weights)
