"""What the HTTP side assumes about the engine core."""

from __future__ import annotations

import inspect

import pytest

from aurora_backend_torch.engine import Engine
from plugins.backend_torch.tests.conftest import Served
from plugins.backend_torch.tests.fake_engine import FakeEngine

METHODS = [
    "start",
    "submit",
    "end",
    "swap",
    "load_resident",
    "unload_resident",
    "status",
    "finished",
    "shutdown",
]


@pytest.mark.parametrize("method", METHODS)
def test_fake_and_real_engine_are_called_alike(method: str) -> None:
    real = inspect.signature(getattr(Engine, method))
    assert inspect.signature(getattr(FakeEngine, method)) == real


def test_one_request_that_cannot_be_shown_does_not_hold_up_the_others(served: Served) -> None:
    broken = 2**40  # no tokenizer takes it
    served.engine.reply = lambda request: (
        [broken] if request.num_logprobs == 1 else served.ids("fine")
    )
    answer = served.completion(logprobs=1, max_tokens=1)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"].startswith("the server failed on this request")
    assert served.completion(max_tokens=4).json()["choices"][0]["text"] == "fine"
