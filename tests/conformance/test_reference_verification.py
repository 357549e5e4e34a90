"""The reference verifier is lossless: what it commits has the target's own distribution."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from aurora_core.interfaces import DraftDistributions, Proposal
from aurora_core.records import Sampling
from aurora_core.testing import reference_verification
from aurora_core.testing.goodness_of_fit import misfit
from aurora_core.testing.reference_verification import distribution, verify
from aurora_core.testing.suites.backend_output import surprise

VOCAB = 5
NUM_DRAWS = 1200
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
SHAPES = {
    "chain": (-1, 0, 1),
    "siblings": (-1, -1, -1),
    "tree": (-1, -1, 0, 0, 1, 2),
}
"""Parents of proposals whose tokens are sampled."""
SAMPLINGS = {
    "temperature": Sampling(temperature=1.0, rule="point_mass"),
    "cold": Sampling(temperature=0.6, rule="point_mass"),
    "top_p": Sampling(temperature=1.0, top_p=0.7, rule="point_mass"),
    "top_k": Sampling(temperature=1.3, top_k=3, rule="point_mass"),
}


@functools.cache
def _row(seed: int) -> Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))


def _number(tokens: Sequence[int]) -> int:
    return sum((token + 1) * (VOCAB + 1) ** place for place, token in enumerate(tokens))


def logits_after(tokens: Sequence[int]) -> Tensor:
    """A target that depends on everything before: a few fixed random rows."""
    return 1.5 * _row(_number(tokens))


def drafter_after(tokens: Sequence[int]) -> Tensor:
    """A drafter's distribution, like the target's and yet another; one token is never drafted."""
    logits = 0.2 * logits_after(tokens) + _row(20_000 + _number(tokens))
    logits[(len(tokens) + 3) % VOCAB] = -torch.inf
    return logits.double().softmax(-1)


def sampled(parents: Sequence[int], generator: torch.Generator) -> Proposal:
    """Draw every node from the drafter, siblings independently of each other."""
    paths: list[list[int]] = []
    probs = []
    for parent in parents:
        before = [] if parent < 0 else paths[parent]
        probs.append(drafter_after(before))
        paths.append([*before, int(torch.multinomial(probs[-1], 1, generator=generator))])
    return Proposal(
        token_ids=[path[-1] for path in paths],
        parents=parents,
        log_probs=[-1.0] * len(paths),
        drawn_from=DraftDistributions(
            token_ids=torch.arange(VOCAB), probs=torch.stack(probs).float()
        ),
    )


def speculative(
    propose: Callable[[torch.Generator], Proposal],
    sampling: Sampling,
    length: int = 3,
    num_draws: int = NUM_DRAWS,
) -> list[tuple[int, ...]]:
    """Return many answers of `length` tokens, whose first step verified a proposal."""
    generator = torch.Generator().manual_seed(1)
    answers = []
    for _ in range(num_draws):
        proposal = propose(generator)
        accepted = verify(proposal, logits_after, sampling, generator)
        tokens = [int(proposal.token_ids[node]) for node in accepted.path]
        tokens.append(accepted.bonus_token)
        while len(tokens) < length:
            following = distribution(logits_after(tokens), sampling)
            tokens.append(int(torch.multinomial(following, 1, generator=generator)))
        answers.append(tuple(tokens[:length]))
    return answers


def is_noticed(propose: Callable[[torch.Generator], Proposal]) -> bool:
    """Return whether the first token that verification commits tells that something is wrong.

    By the exact distributions, every bug below is expected at seven standard deviations or more.
    """
    sampling = SAMPLINGS["temperature"]
    answers = speculative(propose, sampling, length=1, num_draws=2 * NUM_DRAWS)
    return misfit(answers, plain(sampling, length=1)) > LIMIT


def plain(sampling: Sampling, length: int = 3) -> dict[tuple[int, ...], float]:
    """Return every answer's share in the target's distribution."""
    exact: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        exact = {
            (*tokens, token): probability * float(following)
            for tokens, probability in exact.items()
            for token, following in enumerate(distribution(logits_after(tokens), sampling))
            if following > 0
        }
    return exact


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("proposal", PROPOSALS.values(), ids=PROPOSALS)
def test_committed_tokens_have_the_targets_distribution(
    proposal: Proposal, sampling: Sampling
) -> None:
    assert misfit(speculative(lambda _: proposal, sampling), plain(sampling)) < LIMIT


@pytest.mark.parametrize("name", ["temperature", "top_p"])
@pytest.mark.parametrize("parents", SHAPES.values(), ids=SHAPES)
def test_committed_tokens_have_it_with_sampled_drafts_too(
    parents: tuple[int, ...], name: str
) -> None:
    sampling = SAMPLINGS[name]
    answers = speculative(lambda generator: sampled(parents, generator), sampling)
    assert misfit(answers, plain(sampling)) < LIMIT


def test_a_sampled_draft_is_accepted_with_the_overlap_of_the_distributions() -> None:
    sampling, generator = SAMPLINGS["temperature"], torch.Generator().manual_seed(2)
    target = distribution(logits_after([]), sampling)
    overlap = float(torch.minimum(target, drafter_after([])).sum())
    accepted = [
        bool(verify(sampled((-1,), generator), logits_after, sampling, generator).path)
        for _ in range(NUM_DRAWS)
    ]
    assert misfit(accepted, {True: overlap, False: 1 - overlap}) < LIMIT
    always = Proposal(
        token_ids=(1,),
        parents=(-1,),
        log_probs=(-1.0,),
        drawn_from=DraftDistributions(token_ids=torch.arange(VOCAB), probs=target[None]),
    )
    for _ in range(50):
        assert verify(always, logits_after, sampling, generator).path == (0,)


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
    for _ in range(20):
        drafts = sampled((-1, -1, 0), generator)
        accepted = verify(drafts, logits_after, Sampling(), generator)
        tokens = [drafts.token_ids[node] for node in accepted.path] + [accepted.bonus_token]
        assert tokens[:2] == best[: len(tokens)]


def refused_may_come_again(left: Tensor, draft: Tensor) -> Tensor:
    """Leaves the target's distribution as it is: what is refused can be drawn after all."""
    return left


def is_not_scaled(left: Tensor, draft: Tensor) -> Tensor:
    """Takes out the draft, does not renormalise: later siblings are accepted too rarely."""
    return (left - draft).clamp(min=0)


def goes_to_the_next_token(left: Tensor, draft: Tensor) -> Tensor:
    """Moves the mass that is refused to neighbours."""
    rest = left - torch.minimum(left, draft)
    return rest + torch.minimum(left, draft).roll(1)


def loses_the_likeliest(left: Tensor, draft: Tensor) -> Tensor:
    """Refuses by taking out the draft's best token, whichever token was drawn."""
    rest = left.clone()
    rest[int(draft.argmax())] = 0
    return rest / rest.sum()


def is_the_difference_either_way(left: Tensor, draft: Tensor) -> Tensor:
    """Forgets to cut off at zero: the absolute difference."""
    rest = (left - draft).abs()
    return rest / rest.sum()


def accepts_all(left: Tensor, draft: Tensor, token: int) -> float:
    """Takes whatever was drafted."""
    return 1.0


def forgets_the_drafter(left: Tensor, draft: Tensor, token: int) -> float:
    """Accepts a sampled draft as if it were deterministic, and takes the residual of sampling."""
    return float(left[token])


def divides_the_wrong_way(left: Tensor, draft: Tensor, token: int) -> float:
    """The drafter's probability over the target's."""
    return min(1.0, float(draft[token]) / max(float(left[token]), 1e-9))


@pytest.mark.parametrize("shape", ["point mass", "sampled"])
@pytest.mark.parametrize("broken", [refused_may_come_again, is_not_scaled, goes_to_the_next_token])
def test_a_wrong_residual_is_noticed(
    broken: Callable[[Tensor, Tensor], Tensor], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_verification, "_residual", broken)
    likeliest = logits_after([]).argsort(descending=True)[:3].tolist()
    siblings = Proposal(token_ids=likeliest, parents=(-1, -1, -1), log_probs=(-1.0,) * 3)

    def propose(generator: torch.Generator) -> Proposal:
        return siblings if shape == "point mass" else sampled((-1, -1, -1), generator)

    assert is_noticed(propose)


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        ("_residual", loses_the_likeliest),
        ("_residual", is_the_difference_either_way),
        ("_acceptance", accepts_all),
        ("_acceptance", forgets_the_drafter),
        ("_acceptance", divides_the_wrong_way),
    ],
)
@pytest.mark.parametrize("parents", [(-1, 0), (-1, -1)], ids=["chain", "siblings"])
def test_a_wrong_rule_for_sampled_drafts_is_noticed(
    part: str, broken: object, parents: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_verification, part, broken)
    assert is_noticed(lambda generator: sampled(parents, generator))


def test_siblings_drawn_without_replacement_are_noticed() -> None:
    """The proposal says that both come from the same distribution, and the second does not."""

    def propose(generator: torch.Generator) -> Proposal:
        probs = drafter_after([])
        pair = torch.multinomial(probs, 2, generator=generator).tolist()
        return Proposal(
            token_ids=pair,
            parents=(-1, -1),
            log_probs=(-1.0, -1.0),
            drawn_from=DraftDistributions(
                token_ids=torch.arange(VOCAB), probs=probs.expand(2, VOCAB).float()
            ),
        )

    assert is_noticed(propose)


@pytest.mark.parametrize("wrong", ["flat", "the next node's"])
def test_a_distribution_stated_wrongly_is_noticed(wrong: str) -> None:
    def propose(generator: torch.Generator) -> Proposal:
        honest = sampled((-1, 0), generator)
        assert honest.drawn_from is not None
        probs = honest.drawn_from.probs
        stated = probs.roll(1, 0) if wrong == "the next node's" else (probs > 0).float()
        stated = stated / stated.sum(-1, keepdim=True)
        return dataclasses.replace(
            honest, drawn_from=dataclasses.replace(honest.drawn_from, probs=stated)
        )

    assert is_noticed(propose)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.2, 0.2, 0.1]).log()
    kept = distribution(logits, Sampling(temperature=1.0, top_p=0.65))
    torch.testing.assert_close(kept, torch.tensor([0.5, 0.2, 0.0, 0.0]).double() / 0.7)
    assert Counter(distribution(logits, Sampling()).tolist()) == {1.0: 1, 0.0: 3}


def test_surprise_is_small_for_equal_samples_and_large_for_others() -> None:
    even = [(0,), (1,)] * 300
    assert surprise(even, even[::-1]) < 1
    assert surprise(even, [(0,)] * 450 + [(1,)] * 150) > LIMIT


def test_misfit_is_small_for_a_fair_sample_and_large_for_others() -> None:
    expected = {0: 0.5, 1: 0.3, 2: 0.1995, 3: 0.0005}
    fair = [0] * 500 + [1] * 300 + [2] * 199 + [3]
    assert misfit(fair, expected) < 1
    assert misfit(fair, {key: 7 * share for key, share in expected.items()}) < 1
    assert misfit([0] * 400 + [1] * 400 + [2] * 200, expected) > LIMIT
    assert misfit([*fair, 4, 4, 4, 4, 4, 4, 4, 4, 4], expected) > LIMIT
    assert misfit([0, 1] * 50 + [2], {0: 0.5, 1: 0.5}) == math.inf
    assert misfit([0] * 10, {0: 1.0}) == 0.0
