"""Sampled answers have the target's distribution, and leave greedy ones beside them alone."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from plugins.backend_vllm.engine_tests.reference import Reference
from plugins.backend_vllm.engine_tests.running_engine import RunningEngine

NUM_SAMPLES = 800
PROMPT = [5, 6, 7, 8]
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> RunningEngine:
    engine = RunningEngine(tmp_path_factory.mktemp("sampling"), "eagle3", max_num_seqs=32)
    for number in range(NUM_SAMPLES):
        engine.add(f"sampled{number}", PROMPT, max_tokens=4, temperature=TEMPERATURE)
        if number % 40 == 0:
            engine.add(f"greedy{number}", [*PROMPT, 9 + number % 300], max_tokens=12)
    engine.run()
    return engine


@pytest.fixture(scope="module")
def reference(engine: RunningEngine) -> Reference:
    return Reference(engine.target.path)


@pytest.mark.parametrize("num_before", [1, 2])
def test_sampled_tokens_have_the_targets_distribution(
    engine: RunningEngine, reference: Reference, num_before: int
) -> None:
    """Compare the tokens after the most common beginning; the first comes without a draft."""
    answers = [
        tuple(answer.token_ids) for name, answer in engine.answers.items() if "sampled" in name
    ]
    beginnings = Counter(answer[:num_before] for answer in answers)
    beginning, num_drawn = beginnings.most_common(1)[0]
    assert num_drawn > 100
    found = torch.zeros(engine.target.vocab_size)
    for answer in answers:
        if answer[:num_before] == beginning:
            found[answer[num_before]] += 1 / num_drawn
    right = reference.next_token_probabilities([*PROMPT, *beginning], TEMPERATURE)
    generator = torch.Generator().manual_seed(0)
    chance = []
    for _ in range(300):
        drawn = torch.multinomial(right, num_drawn, replacement=True, generator=generator)
        chance.append(_distance(torch.bincount(drawn, minlength=len(right)) / num_drawn, right))
    distances = torch.tensor(chance)
    assert _distance(found, right) < float(distances.mean() + 5 * distances.std())


def test_greedy_requests_beside_sampled_ones_are_the_targets_own(
    engine: RunningEngine, reference: Reference
) -> None:
    greedy = [answer for name, answer in engine.answers.items() if "greedy" in name]
    assert len(greedy) == 20
    for answer in greedy:
        tokens = answer.prompt + answer.token_ids
        assert reference.largest_gap(tokens, len(answer.prompt)) < 1e-3


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the total variation distance."""
    return float((one - other).abs().sum() / 2)
