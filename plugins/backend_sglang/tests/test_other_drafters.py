"""Runs beside a drafter of SGLang's own: what is started, what is refused, and how it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aurora_backend_sglang.backend import SglangBackend
from aurora_backend_sglang.config import SglangBackendOptions
from aurora_backend_sglang.engine.settings import EngineSettings
from aurora_backend_sglang.other_drafters import algorithm_of, how_to_go_over
from aurora_backend_sglang.server_command import server_command
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from aurora_core.records import NO_DRAFTER
from aurora_core.wire import from_json
from plugins.backend_sglang.tests.engine_records import publish
from plugins.backend_sglang.tests.test_attaching import attached
from plugins.backend_sglang.tests.test_backend import ask, options

NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8")
EAGLE = ("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", "drafter")


@pytest.fixture
def bare(plan: ServePlan) -> ServePlan:
    """A plan without a drafter."""
    return replace(plan, initial_version=None)


@pytest.mark.parametrize(
    ("arguments", "algorithm"),
    [
        ((), "EAGLE3"),
        (NGRAM, "NGRAM"),
        (("--tp-size", "2", "--speculative_algorithm=standalone"), "STANDALONE"),
        (("--speculative-algorithm", "EAGLE3"), "EAGLE3"),
        (EAGLE, "EAGLE"),
        (("--speculative-algorithm",), "EAGLE3"),
    ],
)
def test_the_arguments_say_what_drafts(arguments: tuple[str, ...], algorithm: str) -> None:
    assert algorithm_of(arguments) == algorithm


def test_what_drafts_is_started_as_the_user_says(interpreter: Path, bare: ServePlan) -> None:
    chosen = options(interpreter, arguments=(*NGRAM, "--tp-size", "2"))
    command = server_command(bare, chosen, drafter=None, port=1, python=interpreter)
    assert tuple(command[-6:]) == (*NGRAM, "--tp-size", "2")
    assert "EAGLE3" not in command
    assert command.count("--speculative-num-draft-tokens") == 1
    assert "--enable-return-hidden-states" in command


def test_passes_of_an_eagle_1_server_hand_over_all_rows_anyway(
    interpreter: Path, bare: ServePlan
) -> None:
    chosen = options(interpreter, arguments=EAGLE)
    command = server_command(bare, chosen, drafter=None, port=1, python=interpreter)
    assert tuple(command[-4:]) == EAGLE
    assert "--enable-return-hidden-states" not in command


async def test_a_run_beside_ngrams_serves_and_makes_no_placeholder(
    interpreter: Path, bare: ServePlan
) -> None:
    backend = SglangBackend(options(interpreter, arguments=NGRAM))
    await backend.start(bare)
    await ask(backend.url)
    assert (await backend.status()).live_version == NO_DRAFTER
    (request,) = await backend.finished(0)
    assert request.max_draft_version == NO_DRAFTER
    engine = Path(bare.run_dir) / "engine"
    assert [path.name for path in engine.iterdir()] == ["settings.json"]
    settings = from_json(EngineSettings, (engine / "settings.json").read_bytes())
    assert (settings.algorithm, settings.drafter_dir) == ("NGRAM", "")
    assert not settings.drafts_chains, "there is no step without drafts"
    await backend.stop()


async def test_a_version_is_not_swapped_in_and_the_sentence_says_what_to_do(
    interpreter: Path, bare: ServePlan, versions: Path
) -> None:
    backend = SglangBackend(options(interpreter, arguments=("--tp-size", "2", *NGRAM)))
    assert backend.provides.hot_swap == "restart"
    assert not backend.provides.request_routing
    await backend.start(bare)
    for version in (publish(versions), None):
        with pytest.raises(BackendError, match="takes up EAGLE-3 only when it starts") as refused:
            await backend.swap(version)
    assert str(refused.value) == backend.to_swap
    await backend.stop()


def test_what_belongs_to_the_other_drafter_goes_with_it() -> None:
    arguments = ("--tp-size", "2", *NGRAM, "--log-level", "info")
    sentence = how_to_go_over(arguments, "NGRAM")
    kept = sentence.split("backend.arguments=")[1].rstrip("'`")
    assert json.loads(kept) == ["--tp-size", "2", "--log-level", "info"]


def test_eagle_3_is_swapped_in_while_it_serves(interpreter: Path) -> None:
    backend = SglangBackend(options(interpreter))
    assert (backend.provides.hot_swap, backend.to_swap) == ("pause", "")


async def test_a_live_version_cannot_go_on_beside_another_drafter(
    interpreter: Path, plan: ServePlan
) -> None:
    backend = SglangBackend(options(interpreter, arguments=NGRAM))
    with pytest.raises(BackendError, match="version 1 is live in this run directory, and SGLang"):
        await backend.start(plan)


@pytest.mark.parametrize(
    "argument",
    [
        "--enable-return-hidden-states",
        "--return-hidden-states-mode=last",
        "--speculative-adaptive",
        "--enable_return_aux_hidden_states",
    ],
)
async def test_what_recording_takes_for_itself_is_refused(
    interpreter: Path, bare: ServePlan, argument: str
) -> None:
    backend = SglangBackend(options(interpreter, arguments=(*NGRAM, argument)))
    with pytest.raises(BackendError, match=r"beside NGRAM, and .*; leave it out"):
        await backend.start(bare)


async def test_beside_eagle_1_clients_may_have_rows_and_no_other_depth(
    interpreter: Path, bare: ServePlan
) -> None:
    for argument in ("--enable-return-hidden-states", "--return-hidden-states-mode=last"):
        chosen = options(interpreter, arguments=(*EAGLE, argument))
        command = server_command(bare, chosen, drafter=None, port=1, python=interpreter)
        assert command[-1] == argument
    backend = SglangBackend(options(interpreter, arguments=(*EAGLE, "--speculative-adaptive")))
    with pytest.raises(BackendError, match="beside EAGLE, and Aurora's half has taken that choice"):
        await backend.start(bare)


async def test_arguments_of_drafting_stay_auroras_own_for_eagle_3(
    interpreter: Path, plan: ServePlan
) -> None:
    for arguments in (("--speculative-num-steps", "2"), ("--speculative-algorithm", "DFLASH")):
        backend = SglangBackend(options(interpreter, arguments=arguments))
        with pytest.raises(BackendError, match="which Aurora sets itself"):
            await backend.start(plan)


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [("NGRAM", ()), ("EAGLE3", NGRAM), ("STANDALONE", NGRAM), ("EAGLE3", EAGLE), ("EAGLE", ())],
)
async def test_a_server_that_drafts_otherwise_is_not_attached_to(
    bare: ServePlan, versions: Path, serve: Any, runs: str, wanted: tuple[str, ...]
) -> None:
    served = serve(versions, algorithm=runs)
    with pytest.raises(BackendError, match=f"its drafting algorithm is '{runs}', expected"):
        await attached(served.url, arguments=wanted).start(bare)


async def test_a_server_with_ngrams_is_attached_to_and_left_alone(
    bare: ServePlan, versions: Path, serve: Any
) -> None:
    served = serve(versions, algorithm="NGRAM")
    backend = attached(served.url, arguments=NGRAM)
    await backend.start(bare)
    await ask(backend.url)
    assert [one.sequence for one in await backend.finished(0)] == [1]
    assert not {"begin_weight_update", "weights_checker"} & set(served.scheduler.calls)
    await backend.stop()


@pytest.mark.parametrize(("arguments", "rejects"), [(NGRAM, False), (EAGLE, True)])
def test_rules_of_verification_are_those_of_the_drafter(
    interpreter: Path, arguments: tuple[str, ...], rejects: bool
) -> None:
    chosen = SglangBackendOptions(python=interpreter, device="cuda", arguments=arguments)
    provides = SglangBackend(chosen).provides
    assert provides.verification_rules - {"rejection"} == {"greedy", "point_mass"}
    assert ("rejection" in provides.verification_rules) == rejects
    assert (provides.hot_swap, provides.request_routing) == ("restart", False)
