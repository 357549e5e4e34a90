"""What the target teaches, by hand and against the plain softmax."""

from __future__ import annotations

import math

import pytest
import torch

from aurora_core.learner.draft_vocabulary import choose_target_ids
from aurora_core.learner.teacher import TargetRows, Teacher, sampling_probabilities
from aurora_core.testing.traces import make_trace

VOCAB, HIDDEN = 12, 6
TARGET_IDS = torch.tensor([1, 4, 5, 11])


def rows_of(
    temperature: list[float],
    *,
    top_p: float = 1.0,
    top_k: int = 0,
    next_token: list[int] | None = None,
) -> tuple[TargetRows, torch.Tensor]:
    """Return random rows, one per temperature, and the head that they were computed with."""
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(VOCAB, HIDDEN, generator=generator)
    hidden = torch.randn(len(temperature), HIDDEN, generator=generator)
    rows = TargetRows(
        last_hidden_state=hidden,
        logsumexp=(hidden @ head.T).logsumexp(-1),
        next_token=torch.tensor(next_token or [4] * len(temperature)),
        temperature=torch.tensor(temperature),
        top_p=torch.full((len(temperature),), top_p),
        top_k=torch.full((len(temperature),), top_k),
    )
    return rows, head


def test_shares_are_those_of_the_whole_vocabulary() -> None:
    rows, head = rows_of([0.0, 1.0, 0.0])
    teacher = Teacher(rows, head, TARGET_IDS, greedy_teacher="soft")
    probs, entropy = teacher.probabilities(slice(1, 3))
    exact = (rows.last_hidden_state @ head.T).softmax(-1)[1:, TARGET_IDS]
    torch.testing.assert_close(probs, exact)
    torch.testing.assert_close(entropy, -(exact * exact.log()).sum(-1))
    assert bool((probs.sum(-1) < 1).all())
    assert teacher.num_rows == 3


def test_requests_teach_what_they_are_sampled_from() -> None:
    rows, head = rows_of([0.5, 0.0, 1.0], top_p=0.8)
    teacher = Teacher(rows, head, TARGET_IDS, greedy_teacher="soft")
    probs, entropy = teacher.probabilities(slice(0, 3))
    logits = rows.last_hidden_state @ head.T
    sampled = sampling_probabilities(
        logits[[0, 2]],
        temperature=torch.tensor([0.5, 1.0]),
        top_p=torch.full((2,), 0.8),
        top_k=torch.zeros(2, dtype=torch.int64),
    )
    torch.testing.assert_close(probs[[0, 2]], sampled[:, TARGET_IDS])
    torch.testing.assert_close(probs[1], logits[1].softmax(-1)[TARGET_IDS])
    torch.testing.assert_close(entropy, torch.special.entr(probs).sum(-1))


def test_a_greedy_request_can_teach_its_token_alone() -> None:
    rows, head = rows_of([0.0, 0.0, 1.0], next_token=[5, 6, 5])
    teacher = Teacher(rows, head, TARGET_IDS, greedy_teacher="argmax")
    assert teacher.next_index.tolist() == [2, -1, 2]
    probs, entropy = teacher.probabilities(slice(0, 3))
    # Token 6 is not in the draft vocabulary: nothing can be learned from it.
    assert probs[:2].tolist() == [[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    assert entropy[:2].tolist() == [0.0, 0.0]
    assert 0 < float(probs[2].sum()) < 1


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "expected"),
    [
        (1.0, 1.0, 0, [0.5, 0.3, 0.2]),
        (1.0, 1.0, 2, [0.625, 0.375, 0.0]),
        (1.0, 0.6, 0, [0.625, 0.375, 0.0]),
        (1.0, 0.4, 0, [1.0, 0.0, 0.0]),
        (0.5, 1.0, 0, [25 / 38, 9 / 38, 4 / 38]),
    ],
)
def test_sampling_by_hand(
    temperature: float, top_p: float, top_k: int, expected: list[float]
) -> None:
    probs = sampling_probabilities(
        torch.tensor([[math.log(0.5), math.log(0.3), math.log(0.2)]]),
        temperature=torch.tensor([temperature]),
        top_p=torch.tensor([top_p]),
        top_k=torch.tensor([top_k]),
    )
    torch.testing.assert_close(probs, torch.tensor([expected]))


def test_a_draft_vocabulary_prefers_what_responses_hold_and_ignores_damaged_rows() -> None:
    trace = make_trace(3, vocab_size=64, hidden_size=8)
    head = torch.zeros(64, 8)  # expects every token alike
    response = set(trace.token_ids[trace.prompt_len :].tolist())
    chosen = choose_target_ids([trace], head, size=len(response), vocab_size=64)
    assert set(chosen.tolist()) == response
    trace.features["last_hidden_state"][2] = float("nan")
    assert choose_target_ids([trace], head, size=len(response), vocab_size=64).tolist() == (
        chosen.tolist()
    )
