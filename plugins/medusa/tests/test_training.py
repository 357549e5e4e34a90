"""Which rows learn, from what, and how losses add up."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from aurora_core.learner.teacher import TargetRows, Teacher
from aurora_core.records import Sampling, TargetSpec, Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.traces import make_trace as make_random_trace
from aurora_medusa import head_loss
from aurora_medusa.head_loss import Lesson, supervise
from aurora_medusa.model import MedusaNetwork
from aurora_medusa.speculator import MedusaSpeculator

PROMPT_LEN, NUM_TOKENS = 7, 15


@pytest.fixture
def trace(make_trace: Callable[..., Trace]) -> Trace:
    return make_trace(1, prompt_len=PROMPT_LEN, num_response=NUM_TOKENS - PROMPT_LEN)


@pytest.fixture
def network(speculator: MedusaSpeculator, weights: TargetWeights, trace: Trace) -> MedusaNetwork:
    return disturbed(speculator.build_module(weights, [trace]))  # type: ignore[arg-type]


def disturbed(network: MedusaNetwork) -> MedusaNetwork:
    """Give the blocks random weights, so that no two heads compute the same."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.blocks.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network


def test_a_loss_by_hand() -> None:
    # Two tokens that the target holds for 3 : 1 likely, a head that holds them for equal.
    head = torch.eye(2)
    hidden = torch.tensor([[math.log(3.0), 0.0]])
    rows = TargetRows(
        last_hidden_state=hidden,
        logsumexp=hidden.logsumexp(-1),
        next_token=torch.tensor([0]),
        temperature=torch.ones(1),
        top_p=torch.ones(1),
        top_k=torch.zeros(1, dtype=torch.int64),
    )
    teacher = Teacher(rows, head, torch.arange(2), greedy_teacher="soft")
    pupil = torch.zeros(1, 2, requires_grad=True)
    lesson = Lesson(teacher_row=torch.tensor([0]), weight=0.5)
    loss, hits = supervise([pupil], [head], [lesson], teacher)
    # 0.5 * (3/4 log(3/4 / 1/2) + 1/4 log(1/4 / 1/2))
    expected = 0.5 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    # The gradient of a KL by the logits is draft minus target.
    torch.testing.assert_close(pupil.grad, torch.tensor([[-0.125, 0.125]]))
    assert hits.tolist() == [True]


def test_gradient_reaches_exactly_the_supervised_anchors(
    speculator: MedusaSpeculator, network: MedusaNetwork, trace: Trace
) -> None:
    batch = speculator.collate([trace])
    hidden = batch["last_hidden_state"].clone().requires_grad_()
    output = speculator.loss(network, batch | {"last_hidden_state": hidden})
    output.loss_sum.backward()
    assert hidden.grad is not None
    # Row 13 only teaches, and the target's side of a pair has no gradient.
    reached = hidden.grad.abs().sum(-1).nonzero().flatten()
    assert batch["row_position"][reached].tolist() == [6, 7, 8, 9, 10, 11, 12]
    assert output.num_tokens == 7
    torch.testing.assert_close(output.weight_sum, torch.tensor(7 + 0.8 * 6 + 0.64 * 5))


def slow_loss(speculator: MedusaSpeculator, network: MedusaNetwork, trace: Trace) -> Tensor:
    """Return the loss by the formula, one position, head and token at a time."""
    hidden = trace.features["last_hidden_state"]
    log_target = (hidden @ network.target_head.T).log_softmax(-1)[:, network.token_map]
    total = torch.zeros(())
    for position in range(trace.prompt_len - 1, len(trace.token_ids) - 2):
        for head, block in enumerate(network.blocks):
            if position + 2 + head < len(trace.token_ids):
                logits = network.output_heads[head] @ block(hidden[position])
                taught = log_target[position + 1 + head]
                divergence = (taught.exp() * (taught - logits.log_softmax(-1))).sum()
                total = total + speculator.options.head_decay**head * divergence
    return total


@pytest.mark.parametrize("own_heads", [False, True])
@pytest.mark.parametrize("chunk_rows", [1, 7, 256])
def test_loss_and_gradients_equal_the_plain_formula(
    make_speculator: Callable[..., MedusaSpeculator],
    weights: TargetWeights,
    trace: Trace,
    own_heads: bool,
    chunk_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_loss, "CHUNK_ROWS", chunk_rows)
    speculator = make_speculator(own_heads=own_heads, num_blocks=2)
    network = disturbed(speculator.build_module(weights, [trace]))  # type: ignore[arg-type]
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
    speculator: MedusaSpeculator, network: MedusaNetwork, make_trace: Callable[..., Trace]
) -> None:
    traces = [make_trace(2, num_response=9), make_trace(3, prompt_len=4, num_response=14)]
    one, two = (speculator.loss(network, speculator.collate([trace])) for trace in traces)
    both = speculator.loss(network, speculator.collate(traces))
    torch.testing.assert_close(both.loss_sum, one.loss_sum + two.loss_sum)
    torch.testing.assert_close(both.weight_sum, one.weight_sum + two.weight_sum)
    assert both.num_tokens == one.num_tokens + two.num_tokens


def test_requests_teach_the_distribution_that_they_were_sampled_from(
    make_speculator: Callable[..., MedusaSpeculator],
    weights: TargetWeights,
    network: MedusaNetwork,
    trace: Trace,
) -> None:
    def losses(sampling: Sampling, **options: object) -> float:
        speculator = make_speculator(**options)
        batch = speculator.collate([dataclasses.replace(trace, sampling=sampling)])
        return speculator.loss(network, batch).loss_sum.item()

    soft = losses(Sampling(temperature=1.0))
    assert losses(Sampling(temperature=0.0)) == soft
    cold = losses(Sampling(temperature=0.05, top_p=0.5))
    assert cold != pytest.approx(soft, rel=0.01)
    # Sampling that leaves one token teaches that token, as the committed one of a greedy request.
    one_left = losses(Sampling(temperature=1.0, top_k=1))
    assert losses(Sampling(), greedy_teacher="argmax") == pytest.approx(one_left, rel=1e-5)


@pytest.mark.parametrize("num_response", [0, 1])
def test_a_trace_without_a_draft_has_no_loss_and_gradients_of_zero(
    speculator: MedusaSpeculator,
    network: MedusaNetwork,
    make_trace: Callable[..., Trace],
    num_response: int,
) -> None:
    batch = speculator.collate([make_trace(2, num_response=num_response)])
    output = speculator.loss(network, batch)
    output.loss_sum.backward()
    assert (output.loss_sum.item(), output.weight_sum.item(), output.num_tokens) == (0.0, 0.0, 0)
    for parameter in network.parameters():
        assert parameter.grad is not None and not parameter.grad.any()
    accepted, anchors = speculator.acceptance(network, batch, 3)
    assert accepted.tolist() == [[0, 0, 0]] and anchors.tolist() == [0]


def test_a_batch_without_traces_has_no_loss(
    speculator: MedusaSpeculator, network: MedusaNetwork
) -> None:
    batch = speculator.collate([])
    assert float(speculator.loss(network, batch).weight_sum) == 0.0
    accepted, anchors = speculator.acceptance(network, batch, 2)
    assert (accepted.shape, anchors.shape) == ((0, 2), (0,))


def test_rows_of_rejected_drafts_are_no_input_and_no_teacher(
    speculator: MedusaSpeculator, target: TargetSpec, network: MedusaNetwork
) -> None:
    def losses(*, branch_rows: bool) -> float:
        trace = make_random_trace(
            5,
            vocab_size=target.vocab_size,
            hidden_size=target.hidden_size,
            topology="tree",
            branch_rows=branch_rows,
            dtype=torch.float32,
            target_fingerprint=target.fingerprint,
        )
        if branch_rows:
            is_node = trace.rows.node >= 0
            assert bool(is_node.any())
            trace.features["last_hidden_state"][is_node] = float("nan")
        num_committed = int((trace.rows.position >= 0).sum())
        # The features of the committed rows do not depend on whether others were recorded.
        generator = torch.Generator().manual_seed(1)
        trace.features["last_hidden_state"][:num_committed] = torch.randn(
            num_committed, target.hidden_size, generator=generator
        )
        trace.features["target_logsumexp"][:num_committed] = 50.0
        return speculator.loss(network, speculator.collate([trace])).loss_sum.item()

    assert losses(branch_rows=True) == losses(branch_rows=False)


def test_loss_does_not_change_its_batch(
    speculator: MedusaSpeculator, network: MedusaNetwork, trace: Trace
) -> None:
    batch = speculator.collate([trace])
    before = {name: tensor.clone() for name, tensor in batch.items()}
    speculator.loss(network, batch).loss_sum.backward()
    assert all(torch.equal(batch[name], tensor) for name, tensor in before.items())


def test_training_in_mixed_precision_gives_about_the_same_loss(
    speculator: MedusaSpeculator, network: MedusaNetwork, trace: Trace
) -> None:
    batch = speculator.collate([trace])
    exact = speculator.loss(network, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = speculator.loss(network, batch)
    mixed.loss_sum.backward()
    torch.testing.assert_close(mixed.loss_sum, exact.loss_sum, rtol=0.05, atol=0.05)
    assert mixed.loss_sum.dtype == torch.float32
