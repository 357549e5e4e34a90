"""What `aurora export --format sglang` writes is drafted with by an SGLang without Aurora.

A stock server, started by the command that the export prints, accepts exactly as many drafts as our
own drafter's would be accepted, on hidden states that Hugging Face's model has computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from pydantic import SecretStr

from aurora_backend_sglang.backend import SglangBackend
from aurora_backend_sglang.config import SglangBackendOptions
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from plugins.backend_sglang.engine_tests.reference import Reference
from plugins.backend_sglang.engine_tests.running_server import NUM_SPECULATIVE_TOKENS
from plugins.backend_sglang.engine_tests.stock_export import (
    NUM_LEARNED,
    NUM_TOKENS,
    StockExport,
    accepted_per_step,
)

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> StockExport:
    return StockExport(tmp_path_factory.mktemp("stock"))


@pytest.fixture(scope="module")
def url(exported: StockExport) -> Iterator[str]:
    """The running server."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(exported.served()) as url,
    ):
        yield url


@pytest.fixture(scope="module")
def answers(exported: StockExport, url: str) -> list[dict[str, Any]]:
    """Its greedy answers, asked for one after the other."""
    parameters = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    found = []
    for prompt in exported.prompts:
        body = {"input_ids": prompt, "sampling_params": parameters}
        answer = httpx.post(f"{url}/generate", json=body, timeout=300).raise_for_status()
        found.append(answer.json())
    return found


def test_nothing_of_aurora_is_in_the_server(url: str, answers: list[dict[str, Any]]) -> None:
    (state,) = httpx.get(f"{url}/server_info", timeout=60).json()["internal_states"]
    assert "aurora" not in state
    assert all("aurora" not in answer["meta_info"] for answer in answers)


def test_answers_are_those_of_hugging_face(
    exported: StockExport, answers: list[dict[str, Any]]
) -> None:
    reference = Reference(exported.target.path)
    for prompt, answer in zip(exported.prompts, answers, strict=True):
        assert answer["output_ids"] == reference.greedy(prompt, NUM_TOKENS)


def test_as_many_drafts_are_accepted_as_of_our_own_drafter(
    exported: StockExport, answers: list[dict[str, Any]]
) -> None:
    found = [_accepted(answer) for answer in answers]
    assert found == [_expected(exported, prompt) for prompt in exported.prompts]
    elsewhere = _expected(exported, exported.prompts[0], layers_off_by=1)
    assert found[0] != elsewhere, "other layers would make no difference"


def test_what_was_learned_by_heart_is_accepted(answers: list[dict[str, Any]]) -> None:
    for answer in answers[:NUM_LEARNED]:
        meta_info = answer["meta_info"]
        assert meta_info["completion_tokens"] == NUM_TOKENS
        assert NUM_TOKENS / meta_info["spec_verify_ct"] > 0.7 * (NUM_SPECULATIVE_TOKENS + 1)


def test_a_server_without_the_recorder_cannot_be_attached_to(
    exported: StockExport, url: str
) -> None:
    options = SglangBackendOptions(url=url, token=SecretStr("any"), device="cpu")
    backend = SglangBackend(options)
    with (
        start_blocking_portal() as portal,
        pytest.raises(BackendError, match="runs without Aurora's recorder: either it was"),
    ):
        portal.call(backend.start, _plan(exported))


def _accepted(answer: dict[str, Any]) -> Counter[int]:
    """Return in how many steps how many drafts were accepted, as SGLang counts."""
    histogram = answer["meta_info"]["spec_correct_drafts_histogram"]
    counts = Counter({number: steps for number, steps in enumerate(histogram) if steps})
    assert counts.total() == answer["meta_info"]["spec_verify_ct"]
    return counts


def _expected(
    exported: StockExport, prompt: Sequence[int], *, layers_off_by: int = 0
) -> Counter[int]:
    trace = exported.answer(prompt, layers_off_by=layers_off_by)
    return Counter(accepted_per_step(trace, NUM_TOKENS))


def _plan(exported: StockExport) -> ServePlan:
    return ServePlan(
        target=exported.target,
        speculator="eagle3",
        speculator_options={},
        plugins=("core", "eagle", "sglang"),
        needs=exported.speculator.needs,
        num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
        versions_dir="versions",
        initial_version=None,
        sink=None,
        sink_options={},
        run_dir="run",
        seed=0,
    )
