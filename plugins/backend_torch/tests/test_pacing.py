"""Drafts that come to nothing are left out: when, when again, and that no output shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from aurora_backend_torch.pacing import Pacing
from aurora_core.interfaces import DraftRequest, Proposal
from aurora_core.records import Sampling
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.testing.toy_run import install_toy
from plugins.backend_torch.tests.test_engine import PROMPTS, Served, generate, request
from plugins.backend_torch.tests.test_shadowing import OTHER, Reciter, last, put, residents

MAX_TOKENS = 60
BLIND_STEPS = [0, 1, 2, 4, 7, 12, 21, 38, 55]
"""Steps that have drafts with a patience of 3 if none is ever accepted; the last one is 58."""


def drafted(pacing: Pacing, accepted: Sequence[int]) -> list[int]:
    """Return the steps that have drafts, if so many of each step's would be accepted."""
    steps = []
    for step, count in enumerate(accepted):
        if not pacing.skips():
            steps.append(step)
            pacing.judge(count)
    return steps


def test_pauses_begin_after_the_patience_and_double_up_to_sixteen() -> None:
    assert drafted(Pacing(3), [0] * 60) == BLIND_STEPS
    assert len(drafted(Pacing(3), [0] * 1000)) == 7 + (1000 - 38) // 17 + 1


def test_one_accepted_draft_ends_the_pauses() -> None:
    accepted = [0] * 60
    accepted[12] = 1
    assert drafted(Pacing(3), accepted)[:10] == [0, 1, 2, 4, 7, 12, 13, 14, 15, 17]


def test_drafts_that_are_accepted_now_and_then_are_never_left_out() -> None:
    assert drafted(Pacing(3), [0, 0, 1] * 20) == list(range(60))


def test_patience_of_zero_is_endless() -> None:
    assert drafted(Pacing(0), [0] * 60) == list(range(60))


class Blind(Reciter):
    """Foresees nothing of an answer before a position of it."""

    def __init__(self, answers: Sequence[Sequence[int]], *, sees_from: int = 1000) -> None:
        super().__init__(answers, branches=False)
        self.sees_from = sees_from
        self.roots: list[int] = []

    def _propose(self, one: DraftRequest) -> Proposal:
        root = one.start + len(one.token_ids) - 1
        self.roots.append(root)
        proposal = super()._propose(one)
        if root >= self.sees_from:
            return proposal
        [answer] = self.answers
        wrong = (answer[root + 1] + 1) % 256
        return replace(proposal, token_ids=(wrong, *proposal.token_ids[1:]))


@pytest.fixture
def served(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Served]:
    directory = make_tiny_target(tmp_path_factory.mktemp("target"), vocab_size=256, num_layers=4)
    monkeypatch.syspath_prepend(str(install_toy(tmp_path / "toy")))
    patience = getattr(request, "param", 3)
    one = Served(directory, tmp_path, max_verification_rows=60, draft_patience=patience)
    yield one
    one.engine.shutdown()


def whole_answer(served: Served, sampling: Sampling) -> list[int]:
    long = request("plain", PROMPTS[0], max_tokens=MAX_TOKENS, sampling=sampling)
    [output] = generate(served.engine, [long])
    return [*PROMPTS[0], *output]


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.9, seed=3)], ids=["greedy", "sampled"]
)
def test_drafter_that_foresees_nothing_is_asked_less_often_and_the_output_is_the_same(
    served: Served, sampling: Sampling
) -> None:
    known = whole_answer(served, sampling)
    blind = Blind([known])
    put(served.engine, blind)
    asked = request("a", PROMPTS[0], drafter=OTHER, max_tokens=MAX_TOKENS, sampling=sampling)
    [output] = generate(served.engine, [asked])
    assert [*PROMPTS[0], *output] == known
    assert [root - len(PROMPTS[0]) for root in blind.roots] == BLIND_STEPS
    stats = last(served.engine, 1)["a"]
    assert (stats.num_steps, stats.num_speculative_steps) == (MAX_TOKENS - 1, len(BLIND_STEPS))
    assert (stats.min_draft_version, stats.max_draft_version) == (OTHER, OTHER)


@pytest.mark.parametrize("served", [0], indirect=True)
def test_without_an_end_to_patience_every_step_has_drafts(served: Served) -> None:
    blind = Blind([whole_answer(served, Sampling())])
    put(served.engine, blind)
    generate(served.engine, [request("a", PROMPTS[0], drafter=OTHER, max_tokens=MAX_TOKENS)])
    # The last token of all needs none.
    assert last(served.engine, 1)["a"].num_speculative_steps == MAX_TOKENS - 2


def test_text_that_becomes_predictable_gets_drafts_in_every_step_again(served: Served) -> None:
    known = whole_answer(served, Sampling())
    first = len(PROMPTS[0]) + 5
    seeing = Blind([known], sees_from=first)
    put(served.engine, seeing)
    [output] = generate(
        served.engine, [request("a", PROMPTS[0], drafter=OTHER, max_tokens=MAX_TOKENS)]
    )
    assert [*PROMPTS[0], *output] == known
    # It is noticed after the pause in progress, of two steps. From there on two of every three
    # drafts are right, so that a step moves three tokens.
    after = [root for root in seeing.roots if root > first]
    assert after[0] == len(PROMPTS[0]) + BLIND_STEPS[4]
    assert {later - root for root, later in pairwise(after)} == {3}
    assert after[-1] >= len(known) - 5


def test_new_version_is_asked_at_once_whatever_came_of_the_old_ones_drafts(served: Served) -> None:
    known = whole_answer(served, Sampling())
    new = Blind([known])
    put(served.engine, new)

    class Replaced(Blind):
        def _propose(self, one: DraftRequest) -> Proposal:
            proposal = super()._propose(one)
            if len(self.roots) == 5:  # a pause of four steps would follow
                residents(served.engine).activate(OTHER, {1})
            return proposal

    served.engine.swap(1, "")
    old = residents(served.engine)._drafters[1] = Replaced([known])
    [output] = generate(served.engine, [request("a", PROMPTS[0], max_tokens=MAX_TOKENS)])
    assert [*PROMPTS[0], *output] == known
    assert isinstance(old, Replaced) and len(old.roots) == 5
    assert [root - old.roots[-1] - 1 for root in new.roots[:6]] == BLIND_STEPS[:6]


@pytest.mark.parametrize("sees_from", [1000, 20], ids=["never", "later"])
def test_shadow_is_asked_as_often_as_if_it_served(served: Served, sees_from: int) -> None:
    known = whole_answer(served, Sampling())
    put(served.engine, Blind([known], sees_from=sees_from))
    long = request("a", PROMPTS[0], drafter=OTHER, max_tokens=MAX_TOKENS)
    generate(served.engine, [long])
    expected = last(served.engine, 1)["a"]
    generate(served.engine, [replace(long, request_id="b", drafter="none", shadow=OTHER)])
    found = last(served.engine, 1)["b"].shadow
    assert found is not None
    assert found.num_steps == expected.num_steps
    assert found.num_drafted == expected.num_drafted
    assert found.accepted_per_position == expected.accepted_per_position
