"""Both verification rules commit tokens with the target's distribution, whatever was drafted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from aurora_backend_torch.draft_tree import DraftTree
from aurora_backend_torch.verification import (
    Verified,
    follow_own_choice,
    reject_or_accept,
    uniforms,
)
from aurora_core.interfaces import DraftDistributions
from aurora_core.records import Sampling
from aurora_core.sampling import dense_probs

VOCABULARY = 4
NUM_TRIALS = 1_000
SAMPLINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.6, top_p=0.9),
    Sampling(temperature=1.3, top_k=3),
]
GENERATOR = torch.Generator().manual_seed(4)
TARGET = torch.randn(VOCABULARY + 1, VOCABULARY, generator=GENERATOR) * 1.5
"""A target whose logits depend on the token before; the last row is for the root."""
DRAFTER = (TARGET + torch.randn(VOCABULARY + 1, VOCABULARY, generator=GENERATOR)).softmax(-1)


def never(_: list[int]) -> bool:
    return False


def rows_of(tree: DraftTree) -> torch.Tensor:
    return TARGET[[VOCABULARY, *tree.token_ids]]


def sampled_tree(trial: int, parents: list[int]) -> tuple[DraftTree, DraftDistributions]:
    """Draw every node from the drafter's distribution given its parent; siblings independently."""
    draws = uniforms(trial, 1, 0, len(parents))
    token_ids: list[int] = []
    probs = []
    for parent, draw in zip(parents, draws, strict=True):
        before = VOCABULARY if parent < 0 else token_ids[parent]
        probs.append(DRAFTER[before])
        cumulative = DRAFTER[before].double().cumsum(0)
        token_ids.append(int(torch.searchsorted(cumulative, draw * cumulative[-1], right=True)))
    support = torch.arange(VOCABULARY)
    return DraftTree(token_ids, parents), DraftDistributions(
        token_ids=support, probs=torch.stack(probs)
    )


def reject(trial: int, parents: list[int], sampling: Sampling) -> Verified:
    tree, drawn_from = sampled_tree(trial, parents)
    return reject_or_accept(
        tree, drawn_from, rows_of(tree), sampling=sampling, seed=trial, start=5, ends=never
    )


def follow(trial: int, parents: list[int], sampling: Sampling) -> Verified:
    likeliest = TARGET[VOCABULARY].argsort(descending=True).tolist()
    tree = DraftTree([*likeliest, 2][: len(parents)], parents)
    logits = rows_of(tree)
    best = logits.argmax(-1).tolist()
    return follow_own_choice(tree, logits, best, sampling=sampling, seed=trial, start=5, ends=never)


def dense(before: int, sampling: Sampling) -> torch.Tensor:
    return dense_probs(TARGET[before], sampling).float()


def check(counts: Counter[int], expected: torch.Tensor) -> None:
    total = sum(counts.values())
    for token, share in enumerate(expected.tolist()):
        error = (share * (1 - share) / total) ** 0.5
        assert abs(counts[token] / total - share) <= 4 * error + 1e-9, (token, counts, expected)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["plain", "top_p", "top_k"])
@pytest.mark.parametrize("parents", [[-1, 0, 1], [-1, -1, -1, 0, 0]], ids=["chain", "tree"])
@pytest.mark.parametrize("rule", [follow, reject])
def test_committed_tokens_have_the_targets_distribution(
    rule: Callable[[int, list[int], Sampling], Verified], parents: list[int], sampling: Sampling
) -> None:
    first: Counter[int] = Counter()
    second: dict[int, Counter[int]] = {}
    accepted = 0
    for trial in range(NUM_TRIALS):
        verified = rule(trial, parents, sampling)
        assert len(verified.token_ids) == len(verified.accepted) + 1
        accepted += len(verified.accepted)
        first[verified.token_ids[0]] += 1
        if len(verified.token_ids) > 1:
            second.setdefault(verified.token_ids[0], Counter())[verified.token_ids[1]] += 1
    check(first, dense(VOCABULARY, sampling))
    assert second and accepted >= 10
    for before, counts in second.items():
        check(counts, dense(before, sampling))


def test_a_sampled_draft_is_accepted_with_the_overlap_of_the_distributions() -> None:
    sampling = SAMPLINGS[0]
    overlap = float(torch.minimum(dense(VOCABULARY, sampling), DRAFTER[VOCABULARY]).sum())
    accepted = sum(bool(reject(trial, [-1], sampling).accepted) for trial in range(NUM_TRIALS))
    assert abs(accepted / NUM_TRIALS - overlap) < 4 * (0.25 / NUM_TRIALS) ** 0.5


def test_a_wrong_rule_would_be_noticed() -> None:
    """Accepting every draft gives the drafter's distribution, which the check refuses."""
    counts = Counter(sampled_tree(trial, [-1])[0].token_ids[0] for trial in range(NUM_TRIALS))
    with pytest.raises(AssertionError):
        check(counts, dense(VOCABULARY, SAMPLINGS[0]))


def test_a_token_that_ends_the_request_is_the_last_and_is_the_targets_own() -> None:
    tree = DraftTree([1, 2, 3], [-1, 0, 1])
    logits = torch.full((4, VOCABULARY), -9.0)
    logits[torch.arange(3), torch.tensor([1, 2, 3])] = 9.0
    verified = follow_own_choice(
        tree,
        logits,
        logits.argmax(-1).tolist(),
        sampling=Sampling(),
        seed=0,
        start=5,
        ends=lambda chosen: chosen[-1] == 2,
    )
    assert (verified.token_ids, verified.accepted) == ([1, 2], [0])
