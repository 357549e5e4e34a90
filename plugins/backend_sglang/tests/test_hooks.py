"""What the hooks decide, with SGLang's own objects played by the smallest that behave alike."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from aurora_backend_sglang.engine.drafter_swap import DrafterSwap
from aurora_backend_sglang.engine.hooks import EngineHalf
from aurora_backend_sglang.engine.recorder import Recorder
from plugins.backend_sglang.tests.engine_records import engine_settings
from plugins.backend_sglang.tests.test_recorder import (
    first_token,
    read_prompt,
    request,
    verify,
)

PLAIN = {"aurora": {"drafter": "none"}}


class FINISH_LENGTH:
    """SGLang's reason for an end, known by its name."""


class Controller:
    """SGLang's choice of a depth, with depth 0 and 3 held ready."""

    candidate_steps = (0, 3)

    def __init__(self) -> None:
        self.worker = SimpleNamespace(speculative_num_steps=3)

    def _activate(self, steps: int) -> None:
        self.worker.speculative_num_steps = steps


class Variable:
    """One of SGLang's environment variables."""

    value: bool | None = None

    def set(self, value: bool) -> None:
        self.value = value


@pytest.fixture
def skips(monkeypatch: pytest.MonkeyPatch) -> Variable:
    """Whether a drafter is kept from reading what is decoded without drafts."""
    variable = Variable()
    module = ModuleType("sglang.srt.environ")
    module.__dict__["envs"] = SimpleNamespace(SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=variable)
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.environ", module)
    return variable


def half(**changes: Any) -> EngineHalf:
    settings = engine_settings(initial_version=1, initial_checksum="a", **changes)
    one = EngineHalf(settings, lambda _: None)
    one.recorder = Recorder(settings, None, rule="greedy_always")
    one.swap = DrafterSwap(settings)
    return one


def depth_for(one: EngineHalf, *wishes: Any) -> int:
    """Return the depth of a step over requests with these custom parameters."""
    controller = Controller()
    requests = [
        SimpleNamespace(sampling_params=SimpleNamespace(custom_params=each)) for each in wishes
    ]
    one.batch_begun(None, SimpleNamespace(reqs=requests))
    one.steps_chosen(lambda *_: pytest.fail("SGLang chose"), controller, len(wishes))
    return controller.worker.speculative_num_steps


def test_one_request_without_drafts_takes_its_batch_along(skips: Variable) -> None:
    one = half()
    assert depth_for(one, None, {"own": 1}, {"aurora": {"record": False}}) == 3
    assert depth_for(one, PLAIN) == 0
    assert skips.value is True, "as plain decoding: nothing is prepared for a drafter"
    assert depth_for(one, None, PLAIN) == 0
    assert skips.value is False, "the other one drafts again later"
    assert depth_for(one, None) == 3


@pytest.mark.parametrize("policy", ["ignore", "refuse"])
def test_where_no_such_request_is_taken_none_slows_down_others(
    skips: Variable, policy: str
) -> None:
    """Whatever route it came by: not all of them lead through our part of the server."""
    one = half(requests_without_drafts=policy)
    assert depth_for(one, PLAIN) == 3
    assert depth_for(one, None, PLAIN) == 3
    assert skips.value is False


def test_without_a_drafter_nobody_drafts(skips: Variable) -> None:
    one = half()
    assert one.swap is not None
    one.swap.forget()
    assert depth_for(one, None) == 0
    assert skips.value is True


def test_statistics_travel_with_the_last_tokens_of_a_request() -> None:
    """Also those of the step that ended it, whose result SGLang sends before the hook returns."""
    one = half()
    recorder = one.recorder
    assert recorder is not None
    ending, running = request([1, 2], rid="ending"), request([3, 4], rid="running")
    for each in (ending, running):
        read_prompt(recorder, each)
        first_token(recorder, each, 5)
        # A chain of three below the root, of which the first is accepted.
        verify(recorder, each, 2, [5, 6, 7, 8], [1, 2, 3, -1], [-1] * 4, [0, 1], 9)
    batch = SimpleNamespace(
        reqs=[ending, running], forward_mode=SimpleNamespace(is_decode=lambda: True)
    )
    sent: list[dict[str, Any]] = []

    def stock(scheduler: Any, batch: Any) -> None:
        for each in batch.reqs:
            each.output_ids += [6, 9]
        ending.finished_reason, ending.finished_len = FINISH_LENGTH(), 3
        sent.append(one.answers_sent(lambda *_: {"own": [1, 2]}, None, batch.reqs))

    one.result_used(stock, None, batch)
    assert sent[0]["own"] == [1, 2]
    [field], nothing = sent[0]["aurora"]
    assert nothing == []
    assert field["request_id"] == "ending"
    assert (field["num_steps"], field["accepted_per_position"]) == (1, [1, 0, 0])
    assert recorder.num_faults == 0
    assert [stats.request_id for stats in recorder.finished_after(0)] == ["ending"]
    assert one.answers_sent(lambda *_: {}, None, [running]) == {}
