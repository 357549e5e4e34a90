"""Sampling follows the target's distribution, with and without drafts."""

from __future__ import annotations

import numpy as np
import torch

from aurora_backend_torch.sampling import choose
from aurora_core.records import Sampling
from aurora_core.sampling import processed_probs

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, 0.0])


def frequencies(sampling: Sampling, num_draws: int = 20_000) -> np.ndarray:
    best = int(LOGITS.argmax())
    draws = [choose(LOGITS, best, sampling, 1234, position) for position in range(num_draws)]
    return np.bincount(draws, minlength=5) / num_draws


def test_draws_have_the_tempered_distribution() -> None:
    expected = (LOGITS / 0.7).softmax(0).numpy()
    found = frequencies(Sampling(temperature=0.7))
    # Three standard errors of the largest cell.
    assert np.abs(found - expected).max() < 3 * np.sqrt(0.25 / 20_000)


def test_top_k_and_top_p_cut_and_renormalise() -> None:
    probs = LOGITS.softmax(0)
    kept = probs[:2] / probs[:2].sum()
    found = frequencies(Sampling(temperature=1.0, top_k=2))
    assert np.abs(found[:2] - kept.numpy()).max() < 3 * np.sqrt(0.25 / 20_000)
    assert found[2:].sum() == 0
    # 0.61 + 0.22 < 0.85 <= 0.61 + 0.22 + 0.14: three tokens survive.
    cut, token_ids = processed_probs(LOGITS, Sampling(temperature=1.0, top_p=0.85))
    assert token_ids is not None and token_ids[cut > 0].tolist() == [0, 1, 2]
    torch.testing.assert_close(cut[:3], probs[:3] / probs[:3].sum())


def test_a_tiny_top_p_leaves_the_best_token() -> None:
    found = frequencies(Sampling(temperature=1.0, top_p=1e-9), 200)
    assert found[0] == 1.0


def test_drafts_are_accepted_with_the_targets_probability_and_keep_the_distribution() -> None:
    """One-step speculation with a fixed draft: accept if the target's own draw equals it."""
    draft, accepted, output = 1, 0, np.zeros(5)
    sampling = Sampling(temperature=1.0)
    for position in range(20_000):
        token = choose(LOGITS, 0, sampling, 7, position)
        accepted += token == draft
        output[token] += 1
    probs = LOGITS.softmax(0).numpy()
    assert abs(accepted / 20_000 - probs[draft]) < 3 * np.sqrt(0.25 / 20_000)
    assert np.abs(output / 20_000 - probs).max() < 3 * np.sqrt(0.25 / 20_000)


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    sampling = Sampling(temperature=1.0)
    once = [choose(LOGITS, 0, sampling, 3, position) for position in range(50)]
    again = [choose(LOGITS, 0, sampling, 3, position) for position in reversed(range(50))]
    other = [choose(LOGITS, 0, sampling, 4, position) for position in range(50)]
    assert once == again[::-1] and once != other


def test_greedy_takes_the_argmax() -> None:
    assert choose(LOGITS, 0, Sampling(), 1, 5) == 0
