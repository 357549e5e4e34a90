"""The reference verifier is lossless: what it commits has the target's own distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from aurora_core.interfaces import Proposal
from aurora_core.records import Sampling
from aurora_core.testing import reference_verification
from aurora_core.testing.reference_verification import distribution, verify
from aurora_core.testing.suites.backend_output import surprise

VOCAB = 5
NUM_DRAWS = 3000
LIMIT = 5.5
"""Standard deviations; chance alone reaches them once in tens of millions of comparisons."""

PROPOSALS = {
    "nothing": Proposal(token_ids=(), parents=(), log_probs=()),
    "chain": Proposal(token_ids=(1, 3), parents=(-1, 0), log_probs=(-1.0, -1.0)),
    "siblings": Proposal(token_ids=(2, 0, 4), parents=(-1, -1, -1), log_probs=(-1.0,) * 3),
    "tree": Proposal(
        token_ids=(1, 2, 0, 3, 1, 4), parents=(-1, -1, 0, 0, 1, 3), log_probs=(-1.0,) * 6
    ),
}
SAMPLINGS = {
    "temperature": Sampling(temperature=1.0, rule="point_mass"),
    "cold": Sampling(temperature=0.6, rule="point_mass"),
    "top_p": Sampling(temperature=1.0, top_p=0.7, rule="point_mass"),
    "top_k": Sampling(temperature=1.3, top_k=3, rule="point_mass"),
}


def logits_after(tokens: Sequence[int]) -> Tensor:
    """A target that depends on everything before: a few fixed random rows."""
    seed = sum((token + 1) * (VOCAB + 1) ** place for place, token in enumerate(tokens))
    return 1.5 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))


def speculative(proposal: Proposal, sampling: Sampling, length: int = 3) -> list[tuple[int, ...]]:
    """Return many answers of `length` tokens, whose first step verified the proposal."""
    generator = torch.Generator().manual_seed(1)
    answers = []
    for _ in range(NUM_DRAWS):
        accepted = verify(proposal, logits_after, sampling, generator)
        tokens = [proposal.token_ids[node] for node in accepted.path] + [accepted.bonus_token]
        while len(tokens) < length:
            step = verify(
                PROPOSALS["nothing"],
                lambda more, before=tuple(tokens): logits_after([*before, *more]),
                sampling,
                generator,
            )
            tokens.append(step.bonus_token)
        answers.append(tuple(tokens[:length]))
    return answers


def plain(sampling: Sampling, length: int = 3) -> list[tuple[int, ...]]:
    """Return answers in exactly the proportions of the target's distribution."""
    exact: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        exact = {
            (*tokens, token): probability * float(following)
            for tokens, probability in exact.items()
            for token, following in enumerate(distribution(logits_after(tokens), sampling))
            if following > 0
        }
    return [answer for answer, share in exact.items() for _ in range(round(share * 100_000))]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("proposal", PROPOSALS.values(), ids=PROPOSALS)
def test_committed_tokens_have_the_targets_distribution(
    proposal: Proposal, sampling: Sampling
) -> None:
    assert surprise(speculative(proposal, sampling), plain(sampling)) < LIMIT


def test_greedy_verification_follows_the_best_tokens() -> None:
    best = [int(logits_after([]).argmax())]
    best.append(int(logits_after(best).argmax()))
    wrong = (best[0] + 1) % VOCAB
    generator = torch.Generator()
    chain = Proposal(token_ids=(best[0], wrong), parents=(-1, 0), log_probs=(0.0, 0.0))
    accepted = verify(chain, logits_after, Sampling(), generator)
    assert (accepted.path, accepted.bonus_token) == ((0,), best[1])
    tree = Proposal(token_ids=(wrong, best[0], best[1]), parents=(-1, -1, 1), log_probs=(0.0,) * 3)
    assert verify(tree, logits_after, Sampling(), generator).path == (1, 2)


def always_accepts(left: Tensor, token: int) -> Tensor:
    """Leaves a refused token in, without its share: what comes next is drawn as if it were not."""
    return left


def forgets_to_renormalise(left: Tensor, token: int) -> Tensor:
    """Takes the token out and leaves the rest as it is: later siblings are accepted too rarely."""
    rest = left.clone()
    rest[token] = 0
    return rest


def renormalises_over_candidates(left: Tensor, token: int) -> Tensor:
    """Moves the refused mass to the next token alone."""
    rest = left.clone()
    rest[(token + 1) % VOCAB] += rest[token]
    rest[token] = 0
    return rest


@pytest.mark.parametrize(
    "broken", [always_accepts, forgets_to_renormalise, renormalises_over_candidates]
)
def test_a_wrong_residual_is_noticed(
    broken: Callable[[Tensor, int], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_verification, "_without", broken)
    sampling = SAMPLINGS["temperature"]
    likeliest = logits_after([]).argsort(descending=True)[:3].tolist()
    siblings = Proposal(token_ids=likeliest, parents=(-1, -1, -1), log_probs=(-1.0,) * 3)
    assert surprise(speculative(siblings, sampling), plain(sampling)) > LIMIT


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.2, 0.2, 0.1]).log()
    kept = distribution(logits, Sampling(temperature=1.0, top_p=0.65))
    torch.testing.assert_close(kept, torch.tensor([0.5, 0.2, 0.0, 0.0]).double() / 0.7)
    assert Counter(distribution(logits, Sampling()).tolist()) == {1.0: 1, 0.0: 3}


def test_surprise_is_small_for_equal_samples_and_large_for_others() -> None:
    even = [(0,), (1,)] * 300
    assert surprise(even, even[::-1]) < 1
    assert surprise(even, [(0,)] * 450 + [(1,)] * 150) > LIMIT
