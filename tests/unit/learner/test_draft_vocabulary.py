"""Which tokens a draft vocabulary holds."""

from __future__ import annotations

import dataclasses

import torch

from aurora_core.learner.draft_vocabulary import choose_target_ids
from aurora_core.records import Rows
from aurora_core.testing.traces import make_trace


def test_tokens_that_occur_come_before_low_ids_and_those_of_responses_first() -> None:
    trace = make_trace(0, vocab_size=40, prompt_len=4, num_steps=3, version=-1, features=())
    trace.token_ids[:] = torch.tensor([30, 31, 30, 32, 20, 21, 20])

    def choose(size: int) -> list[int]:
        head = torch.zeros(40, 8)
        return choose_target_ids([trace], head, size=size, vocab_size=40).tolist()

    assert choose(1) == [20]
    assert choose(2) == [20, 21]
    assert choose(3) == [20, 21, 30]
    assert choose(8) == [0, 1, 2, 20, 21, 30, 31, 32]
    assert choose(99) == list(range(40))


def test_tokens_that_the_target_expected_are_chosen_though_they_did_not_occur() -> None:
    trace = make_trace(0, vocab_size=40, hidden_size=2, prompt_len=4, num_steps=3, version=-1)
    trace.token_ids[:] = 5
    hidden = trace.features["last_hidden_state"]
    # Rows 0 to 2 read the prompt; the row at its end and those after it expect the response.
    hidden[:] = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 3)
    head = torch.zeros(40, 2)
    head[33, 0] = head[35, 1] = 9.0

    def choose(size: int) -> list[int]:
        return choose_target_ids([trace], head, size=size, vocab_size=40).tolist()

    assert choose(1) == [5]
    assert choose(2) == [5, 35]
    assert choose(3) == [5, 33, 35]
    rejected = dataclasses.replace(
        trace,
        rows=Rows(position=torch.tensor([0, 1, 2, -1, -1, -1]), node=trace.rows.node.clamp(min=0)),
    )
    assert choose_target_ids([rejected], head, size=2, vocab_size=40).tolist() == [5, 33]
