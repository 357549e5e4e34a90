"""Which rows learn, from what, and how losses add up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from aurora_core.interfaces import LossOutput
from aurora_core.records import Rows, Sampling, Trace
from aurora_core.target.weights import TargetWeights
from aurora_eagle import head_loss
from aurora_eagle.collate import Batch
from aurora_eagle.model import Eagle3Network
from aurora_eagle.rollout import Rollout
from aurora_eagle.speculator import Eagle3Speculator
from aurora_eagle.training import supervising_rows

PROMPT_LEN, NUM_TOKENS = 7, 15


@pytest.fixture
def trace(make_trace: Callable[..., Trace]) -> Trace:
    return make_trace(1, prompt_len=PROMPT_LEN, num_response=NUM_TOKENS - PROMPT_LEN)


@pytest.fixture
def network(speculator: Eagle3Speculator, weights: TargetWeights, trace: Trace) -> Eagle3Network:
    torch.manual_seed(0)
    return speculator.build_module(weights, [trace])  # type: ignore[return-value]


def without_rows(trace: Trace, *missing: int) -> Trace:
    kept = ~torch.isin(trace.rows.position, torch.tensor(missing))
    return dataclasses.replace(
        trace,
        rows=Rows(position=trace.rows.position[kept], node=trace.rows.node[kept]),
        features={name: tensor[kept] for name, tensor in trace.features.items()},
    )


def supervised_pairs(speculator: Eagle3Speculator, trace: Trace) -> list[list[tuple[int, int]]]:
    """Return, per step, (position of the anchor, position whose target row supervises it)."""
    batch = Batch.from_dict(speculator.collate([trace]))
    position_of_teacher = {
        int(row): position for position, row in enumerate(batch.teacher_row[0]) if row >= 0
    }
    anchors = batch.row_position[batch.anchor_row].tolist()
    return [
        [
            (anchor, position_of_teacher[row])
            for anchor, row in zip(anchors, rows, strict=True)
            if row >= 0
        ]
        for rows in supervising_rows(batch, 3).tolist()
    ]


def test_supervised_rows_are_those_found_by_hand(
    speculator: Eagle3Speculator, trace: Trace
) -> None:
    # 15 tokens, 7 of them prompt: token 7 comes from the prompt's pass, 8 to 14 can be drafted.
    # The anchor at 6 is fed token 7, predicts token 8 and learns from the target row of 7.
    assert supervised_pairs(speculator, trace) == [
        [(6, 7), (7, 8), (8, 9), (9, 10), (10, 11), (11, 12), (12, 13)],
        [(6, 8), (7, 9), (8, 10), (9, 11), (10, 12), (11, 13)],
        [(6, 9), (7, 10), (8, 11), (9, 12), (10, 13)],
    ]


def test_a_missing_row_neither_starts_a_draft_nor_teaches_one(
    speculator: Eagle3Speculator, trace: Trace
) -> None:
    assert supervised_pairs(speculator, without_rows(trace, 0, 1, 9, 13)) == [
        [(6, 7), (7, 8), (10, 11), (11, 12)],
        [(6, 8), (8, 10), (10, 12)],
        [(7, 10), (8, 11)],
    ]


def test_gradient_reaches_exactly_the_supervised_anchors(
    speculator: Eagle3Speculator, network: Eagle3Network, trace: Trace
) -> None:
    batch = speculator.collate([trace])
    aux = batch["aux_hidden_states"].clone().requires_grad_()
    # Own chains only: without context, an anchor's features can matter to its own loss alone.
    with torch.no_grad():
        network.midlayer.self_attn.v_proj.weight.zero_()
    output = speculator.loss(network, batch | {"aux_hidden_states": aux})
    output.loss_sum.backward()
    assert aux.grad is not None
    assert aux.grad.abs().sum(-1).nonzero().flatten().tolist() == [6, 7, 8, 9, 10, 11, 12]
    assert output.num_tokens == 7
    torch.testing.assert_close(output.weight_sum, torch.tensor(7 + 0.8 * 6 + 0.64 * 5))


def test_prompt_rows_learn_through_their_keys_and_values(
    speculator: Eagle3Speculator, network: Eagle3Network, trace: Trace
) -> None:
    batch = speculator.collate([trace])
    aux = batch["aux_hidden_states"].clone().requires_grad_()
    speculator.loss(network, batch | {"aux_hidden_states": aux}).loss_sum.backward()
    assert aux.grad is not None
    # Row 13 only teaches: no anchor may look that far ahead.
    assert aux.grad.abs().sum(-1).nonzero().flatten().tolist() == list(range(13))


def slow_loss(speculator: Eagle3Speculator, network: Eagle3Network, trace: Trace) -> Tensor:
    """Return the loss by the formula, one anchor, step and token at a time."""
    rollout = Rollout(network, Batch.from_dict(speculator.collate([trace])))
    log_draft = [
        network.lm_head(network.norm(rollout.advance())).log_softmax(-1)
        for _ in range(speculator.options.training_steps)
    ]
    target_logits = trace.features["last_hidden_state"] @ network.target_head.T
    log_target = target_logits.log_softmax(-1)[:, network.target_ids]
    total = torch.zeros(())
    for anchor, position in enumerate(rollout.position.tolist()):
        for step, log_probs in enumerate(log_draft):
            if position + 2 + step < len(trace.token_ids):
                taught = log_target[position + 1 + step]
                divergence = (taught.exp() * (taught - log_probs[anchor])).sum()
                total = total + speculator.options.step_decay**step * divergence
    return total


@pytest.mark.parametrize("chunk_rows", [1, 5, 256])
def test_loss_and_gradients_equal_the_plain_formula(
    speculator: Eagle3Speculator,
    network: Eagle3Network,
    trace: Trace,
    chunk_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_loss, "CHUNK_ROWS", chunk_rows)
    expected = slow_loss(speculator, network, trace)
    expected_gradients = torch.autograd.grad(expected, list(network.parameters()))
    output = speculator.loss(network, speculator.collate([trace]))
    gradients = torch.autograd.grad(output.loss_sum, list(network.parameters()))
    torch.testing.assert_close(output.loss_sum, expected)
    for (name, _), mine, theirs in zip(
        network.named_parameters(), gradients, expected_gradients, strict=True
    ):
        torch.testing.assert_close(mine, theirs, msg=name, rtol=1e-3, atol=1e-4)


def test_a_batch_of_two_is_the_sum_of_two_batches(
    speculator: Eagle3Speculator, network: Eagle3Network, make_trace: Callable[..., Trace]
) -> None:
    traces = [make_trace(1, prompt_len=3, num_response=4), make_trace(2, num_response=31)]

    def run(chosen: list[Trace]) -> tuple[LossOutput, list[Tensor]]:
        output = speculator.loss(network, speculator.collate(chosen))
        return output, list(torch.autograd.grad(output.loss_sum, list(network.parameters())))

    (both, sum_gradients) = run(traces)
    (first, gradients), (second, more) = run(traces[:1]), run(traces[1:])
    torch.testing.assert_close(both.loss_sum, first.loss_sum + second.loss_sum)
    torch.testing.assert_close(both.weight_sum, first.weight_sum + second.weight_sum)
    assert both.num_tokens == first.num_tokens + second.num_tokens
    for mine, one, other in zip(sum_gradients, gradients, more, strict=True):
        torch.testing.assert_close(mine, one + other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("num_response", [0, 1])
def test_a_batch_without_supervised_rows_has_loss_and_gradients_zero(
    speculator: Eagle3Speculator,
    network: Eagle3Network,
    make_trace: Callable[..., Trace],
    num_response: int,
) -> None:
    batch = speculator.collate([make_trace(3, num_response=num_response)])
    output = speculator.loss(network, batch)
    output.loss_sum.backward()
    assert output.loss_sum.item() == output.weight_sum.item() == output.num_tokens == 0
    assert all(
        parameter.grad is None or not parameter.grad.any() for parameter in network.parameters()
    )


def test_no_traces_at_all_are_a_batch_of_loss_zero(
    speculator: Eagle3Speculator, network: Eagle3Network
) -> None:
    batch = speculator.collate([])
    assert float(speculator.loss(network, batch).weight_sum) == 0.0
    accepted, anchors = speculator.acceptance(network, batch, 3)
    assert accepted.shape == (0, 3)
    assert anchors.shape == (0,)


def test_loss_leaves_the_batch_as_it_was(
    speculator: Eagle3Speculator, network: Eagle3Network, trace: Trace
) -> None:
    batch = speculator.collate([trace])
    before = {name: tensor.clone() for name, tensor in batch.items()}
    speculator.loss(network, batch).loss_sum.backward()
    for name, tensor in before.items():
        assert torch.equal(batch[name], tensor), name


@pytest.mark.parametrize(
    "options",
    [{"objective": "lk_hybrid"}, {"greedy_teacher": "argmax"}, {"initialise_from_target": False}],
    ids=str,
)
def test_every_variant_lowers_its_loss(
    make_speculator: Callable[..., Eagle3Speculator],
    weights: TargetWeights,
    trace: Trace,
    options: dict[str, object],
) -> None:
    torch.manual_seed(0)
    speculator = make_speculator(**options)
    network = speculator.build_module(weights, [trace])
    batch = speculator.collate([trace])
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    losses = []
    for _ in range(25):
        output = speculator.loss(network, batch)
        loss = output.loss_sum / output.weight_sum
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_bfloat16_autocast_gives_nearly_the_same_loss_and_float32_gradients(
    speculator: Eagle3Speculator, network: Eagle3Network, trace: Trace
) -> None:
    batch = speculator.collate([trace])
    exact = speculator.loss(network, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rough = speculator.loss(network, batch)
    rough.loss_sum.backward()
    torch.testing.assert_close(rough.loss_sum, exact.loss_sum, rtol=0.05, atol=0.1)
    assert {parameter.grad.dtype for parameter in network.parameters()} == {torch.float32}


def test_a_sampled_request_teaches_the_distribution_that_it_was_sampled_from(
    speculator: Eagle3Speculator, network: Eagle3Network, make_trace: Callable[..., Trace]
) -> None:
    from aurora_eagle.teacher import Teacher

    sampling = Sampling(temperature=0.6, top_p=0.9, top_k=30, rule="point_mass")
    trace = make_trace(5, sampling=sampling)
    batch = Batch.from_dict(speculator.collate([trace]))
    probs, entropy = Teacher(network, batch, greedy_teacher="soft").probabilities(slice(0, 4))
    for row in range(4):
        logits = trace.features["last_hidden_state"][trace.prompt_len + row] @ network.target_head.T
        expected = (logits / 0.6).softmax(-1)
        order = expected.argsort(descending=True)[:30]
        kept, mass = [], 0.0
        for token in order.tolist():
            kept.append(token)
            mass += float(expected[token] / expected[order].sum())
            if mass >= 0.9:
                break
        nucleus = torch.zeros_like(expected)
        nucleus[kept] = expected[kept] / expected[kept].sum()
        torch.testing.assert_close(probs[row], nucleus[network.target_ids], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(
            entropy[row],
            torch.special.entr(nucleus[network.target_ids]).sum(),
            rtol=1e-3,
            atol=1e-4,
        )


def test_greedy_teacher_can_be_the_best_token_alone(
    speculator: Eagle3Speculator, network: Eagle3Network, trace: Trace
) -> None:
    from aurora_eagle.teacher import Teacher

    batch = Batch.from_dict(speculator.collate([trace]))
    teacher = Teacher(network, batch, greedy_teacher="argmax")
    probs, entropy = teacher.probabilities(slice(0, teacher.num_rows))
    responses = trace.token_ids[PROMPT_LEN + 1 :]
    for row, token in enumerate(responses.tolist()):
        expected = (network.target_ids == token).float()
        assert torch.equal(probs[row], expected)
    assert not entropy.any()


def test_training_that_finds_traces_empty_of_tokens_in_the_vocabulary_stays_finite(
    make_speculator: Callable[..., Eagle3Speculator],
    weights: TargetWeights,
    make_trace: Callable[..., Trace],
) -> None:
    speculator = make_speculator(draft_vocab_size=8)
    network = speculator.build_module(weights, [])
    output = speculator.loss(network, speculator.collate([make_trace(9)]))
    output.loss_sum.backward()
    assert torch.isfinite(output.loss_sum)
    assert all(torch.isfinite(parameter.grad).all() for parameter in network.parameters())
