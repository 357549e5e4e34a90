"""Losslessness seen from outside: no drafter changes what is answered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from aurora_core.records import DraftVersion
from aurora_core.testing.suites.backend_fixtures import PROMPTS, BackendFixtures
from aurora_core.testing.suites.served_backend import ServedBackend

NUM_SAMPLED_TOKENS = 4


class OutputPromises(BackendFixtures):
    """Answers with a drafter against answers without."""

    def test_greedy_answers_are_the_same_with_any_drafter(
        self, served: ServedBackend, draft: DraftVersion, learned: DraftVersion
    ) -> None:
        served.swap(None)
        plain = served.ask(PROMPTS, max_tokens=32)
        assert all(answer.num_tokens > 1 for answer in plain)
        for version in (draft, learned, None, draft):
            served.swap(version)
            assert served.ask(PROMPTS, max_tokens=32) == plain

    def test_greedy_answers_do_not_depend_on_what_is_asked_at_the_same_time(
        self, served: ServedBackend, learned: DraftVersion
    ) -> None:
        served.swap(learned)
        together = served.ask(PROMPTS, max_tokens=24)
        alone = [served.ask([prompt], max_tokens=24)[0] for prompt in PROMPTS]
        assert alone == together

    @pytest.mark.parametrize(
        "sampling",
        [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8}],
        ids=["temperature", "top_p"],
    )
    def test_sampled_answers_come_from_the_same_distribution(
        self,
        served: ServedBackend,
        learned: DraftVersion,
        sampling: dict[str, float],
        num_sampled_answers: int,
    ) -> None:
        """Two samples, with and without drafts, compared by chi-square over whole answers."""
        rules = served.backend.provides.verification_rules
        if not rules & {"point_mass", "rejection"}:
            pytest.skip("the backend verifies greedily only")
        counts = []
        for version, first_seed in ((None, 1), (learned, 10_001)):
            served.swap(version)
            newest = served.newest()
            answers = []
            for start in range(0, num_sampled_answers, 16):
                seeds = [first_seed + start + n for n in range(16)]
                answers += served.ask(
                    [PROMPTS[0]] * 16, seeds=seeds, max_tokens=NUM_SAMPLED_TOKENS, **sampling
                )
            counts.append(answers)
        # Of the sample with drafts: an engine that drafts nothing for a full batch proves nothing.
        assert sum(stats.num_drafted for stats in served.finished(newest)) > 0, "nothing drafted"
        for length in range(1, NUM_SAMPLED_TOKENS + 1):
            with_, without = ([a.output[:length] for a in answers] for answers in counts)
            assert surprise(with_, without) < 5.5, f"the first {length} tokens differ"


def surprise(first: Iterable[Sequence[int] | str], second: Iterable[Sequence[int] | str]) -> float:
    """Return how many standard deviations two samples of outcomes are apart.

    Chi-square of homogeneity over outcomes that were seen at least 10 times together, rarer ones
    pooled, by the Wilson-Hilferty approximation to a normal deviate.
    """
    counts = [Counter(first), Counter(second)]
    rare: list[int] = [0, 0]
    cells: list[tuple[int, int]] = []
    for outcome in counts[0] | counts[1]:
        pair = (counts[0][outcome], counts[1][outcome])
        if sum(pair) >= 10:
            cells.append(pair)
        else:
            rare = [rare[0] + pair[0], rare[1] + pair[1]]
    cells.append((rare[0], rare[1]))
    cells = [cell for cell in cells if sum(cell)]
    totals = [sum(cell[side] for cell in cells) for side in (0, 1)]
    freedom = len(cells) - 1
    if freedom < 1:
        return 0.0
    chi_square = sum(
        (cell[side] - expected) ** 2 / expected
        for cell in cells
        for side in (0, 1)
        if (expected := sum(cell) * totals[side] / sum(totals))
    )
    spread = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))
