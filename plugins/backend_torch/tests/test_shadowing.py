"""A drafter in the shadow: it counts what it would have done, and nobody notices."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from aurora_backend_torch.engine import Engine
from aurora_backend_torch.residents import Residents
from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_core.records import NO_DRAFTER, RequestStats, Sampling
from aurora_core.testing.tiny_target import make_tiny_target
from aurora_core.testing.toy_run import install_toy
from plugins.backend_torch.tests.test_engine import PROMPTS, Served, generate, request

OTHER = 2
"""The version in the shadow, and the one that serves where the two are compared."""


class Reciter(Drafter):
    """Drafts what an answer is known to be, wrong in every third place, as a tree if asked to."""

    def __init__(self, answers: Sequence[Sequence[int]], *, branches: bool) -> None:
        self.answers, self.branches = [list(answer) for answer in answers], branches
        self.read: dict[str, int] = {}
        self.forgotten: set[str] = set()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._propose(one) for one in requests]

    def _propose(self, one: DraftRequest) -> Proposal:
        root = one.start + len(one.token_ids) - 1
        assert one.start == self.read.get(one.request_id, 0), "rows are read once, in order"
        assert all(len(rows) == root - one.start for rows in one.features.values())
        self.read[one.request_id] = root
        [answer] = [
            known for known in self.answers if known[one.start : root + 1] == one.token_ids.tolist()
        ]
        depth = min(one.num_speculative_tokens, one.max_nodes)
        right = answer[root + 1 : root + 1 + depth]
        chain = [
            (token + 1) % 256 if (root + place) % 3 == 0 else token
            for place, token in enumerate(right)
        ]
        parents = list(range(-1, len(chain) - 1))
        if self.branches and len(chain) < one.max_nodes and chain:
            chain, parents = [*chain, right[0] ^ 1], [*parents, -1]
        return Proposal(
            token_ids=tuple(chain),
            parents=tuple(parents),
            log_probs=(0.0,) * len(chain),
        )

    def forget(self, request_id: str) -> None:
        self.read.pop(request_id, None)
        self.forgotten.add(request_id)


class Broken(Reciter):
    """Fails at the second draft."""

    def _propose(self, one: DraftRequest) -> Proposal:
        if one.request_id in self.read:
            raise RuntimeError("the drafter is broken, as the test wants it")
        return super()._propose(one)


@pytest.fixture
def served(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    directory = make_tiny_target(tmp_path_factory.mktemp("target"), vocab_size=256, num_layers=4)
    monkeypatch.syspath_prepend(str(install_toy(tmp_path / "toy")))
    one = Served(directory, tmp_path, max_verification_rows=60, max_draft_nodes=7)
    yield one
    one.engine.shutdown()


def residents(engine: Engine) -> Residents:
    return engine._residents


def put(engine: Engine, drafter: Drafter) -> None:
    """Make a scripted drafter resident under the number of a published one."""
    engine.load_resident(OTHER)
    residents(engine)._drafters[OTHER] = drafter


def answers(served: Served) -> list[list[int]]:
    plain = generate(served.engine, [request(f"plain{i}", ids) for i, ids in enumerate(PROMPTS)])
    return [[*prompt, *output] for prompt, output in zip(PROMPTS, plain, strict=True)]


def last(engine: Engine, count: int) -> dict[str, RequestStats]:
    return {stats.request_id: stats for stats in engine.finished(0)[-count:]}


@pytest.mark.parametrize("serving", ["nobody", "another version", "the same version"])
@pytest.mark.parametrize("branches", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("end", ["length", "stop"])
def test_shadow_takes_the_very_steps_that_serving_takes(
    served: Served, serving: str, branches: bool, end: str
) -> None:
    engine, known = served.engine, answers(served)
    put(engine, Reciter(known, branches=branches))
    stops = [
        frozenset({known[i][len(prompt) + 13]} if end == "stop" else ())
        for i, prompt in enumerate(PROMPTS)
    ]
    requests = [
        request(f"a{i}", ids, drafter=OTHER, stop_token_ids=stops[i])
        for i, ids in enumerate(PROMPTS)
    ]
    outputs = generate(engine, requests, at_once=False)
    would_be = [last(engine, len(PROMPTS))[f"a{i}"] for i in range(len(PROMPTS))]
    if serving == "another version":
        engine.load_resident(1)
    drafter = {"nobody": "none", "another version": 1, "the same version": OTHER}[serving]
    shadowed = [
        request(f"b{i}", ids, drafter=drafter, shadow=OTHER, stop_token_ids=stops[i])
        for i, ids in enumerate(PROMPTS)
    ]
    assert generate(engine, shadowed, at_once=False) == outputs
    for index, expected in enumerate(would_be):
        found = last(engine, len(PROMPTS))[f"b{index}"].shadow
        assert found is not None and found.version == OTHER
        if serving != "another version":
            assert expected.num_drafted > expected.num_steps > 3
            assert found.num_steps == expected.num_steps
            assert found.num_drafted == expected.num_drafted
            assert found.accepted_per_position == expected.accepted_per_position
            assert sum(found.accepted_per_position) > 0
        assert found.draft_s > 0


def test_requests_shadowed_together_are_counted_as_alone(served: Served) -> None:
    engine, known = served.engine, answers(served)
    put(engine, Reciter(known, branches=False))
    counted = []
    for name, at_once in (("alone", False), ("together", True)):
        shadowed = [
            request(f"{name}{i}", ids, drafter="none", shadow=OTHER)
            for i, ids in enumerate(PROMPTS)
        ]
        generate(engine, shadowed, at_once=at_once)
        found = last(engine, len(PROMPTS))
        counted.append([found[f"{name}{i}"].shadow for i in range(len(PROMPTS))])
    for alone, together in zip(*counted, strict=True):
        assert alone is not None and together is not None
        assert alone.accepted_per_position == together.accepted_per_position
        assert alone.num_steps == together.num_steps


def test_served_figures_and_output_are_those_without_a_shadow(served: Served) -> None:
    engine, known = served.engine, answers(served)
    put(engine, Reciter(known, branches=True))
    engine.swap(1, "")
    figures = []
    for name, shadow in (("without", None), ("with", OTHER)):
        outputs = generate(
            engine,
            [request(f"{name}{i}", ids, shadow=shadow) for i, ids in enumerate(PROMPTS)],
            at_once=False,
        )
        found = last(engine, len(PROMPTS))
        figures.append(
            (
                outputs,
                [
                    (
                        one.num_steps,
                        one.num_drafted,
                        one.accepted_per_position,
                        one.max_draft_version,
                    )
                    for one in (found[f"{name}{i}"] for i in range(len(PROMPTS)))
                ],
            )
        )
        assert all((one.shadow is not None) == (shadow is not None) for one in found.values())
    assert figures[0] == figures[1]


def test_drafter_that_fails_in_the_shadow_is_let_go_of_and_the_request_goes_on(
    served: Served,
) -> None:
    engine, known = served.engine, answers(served)
    put(engine, Broken(known, branches=False))
    engine.swap(1, "")
    [output] = generate(engine, [request("a", PROMPTS[0], shadow=OTHER)])
    assert [*PROMPTS[0], *output] == known[0]
    stats = engine.finished(0)[-1]
    assert stats.shadow is None and stats.finish_reason == "length"
    assert not engine.is_resident(OTHER)
    assert engine.live_version == 1


def test_version_that_is_gone_shadows_nothing(served: Served) -> None:
    known = answers(served)
    [output] = generate(served.engine, [request("a", PROMPTS[0], shadow=OTHER)])
    assert [*PROMPTS[0], *output] == known[0]
    assert served.engine.finished(0)[-1].shadow is None


def test_state_of_a_shadow_is_forgotten_with_its_request(served: Served) -> None:
    engine, known = served.engine, answers(served)
    reciter = Reciter(known, branches=False)
    put(engine, reciter)
    generate(engine, [request("a", PROMPTS[0], drafter=OTHER, shadow=OTHER)])
    assert {"a", "a/shadow"} <= reciter.forgotten
    assert reciter.read == {}


def test_aborted_request_tells_what_its_shadow_did_so_far(served: Served) -> None:
    engine, known = served.engine, answers(served)
    put(engine, Reciter(known, branches=False))
    engine.submit(request("a", PROMPTS[0], shadow=OTHER, max_tokens=100_000), lambda output: None)
    deadline = time.monotonic() + 60
    while not engine.status().num_running and time.monotonic() < deadline:
        time.sleep(0.001)
    engine.end("a", reason="abort")
    while not (done := [one for one in engine.finished(0) if one.request_id == "a"]):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert done[0].finish_reason == "abort"
    assert done[0].min_draft_version == NO_DRAFTER


def test_sampled_requests_are_shadowed_by_the_same_rule(served: Served) -> None:
    engine = served.engine
    sampling = Sampling(temperature=0.9, seed=11, rule="point_mass")
    plain = generate(engine, [request("a", PROMPTS[1], sampling=sampling)])
    put(engine, Reciter([[*PROMPTS[1], *plain[0]]], branches=False))
    assert generate(engine, [request("b", PROMPTS[1], sampling=sampling, drafter=OTHER)]) == plain
    assert generate(engine, [request("c", PROMPTS[1], sampling=sampling, shadow=OTHER)]) == plain
    served_stats, shadowed = engine.finished(0)[-2:]
    assert shadowed.shadow is not None
    assert shadowed.shadow.accepted_per_position == served_stats.accepted_per_position
    assert shadowed.shadow.num_steps == served_stats.num_steps
