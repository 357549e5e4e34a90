"""The suite of every backend for servers in an environment of their own, drafted by EAGLE-3.

A real server and its fake run the same class, so that the fake cannot come to differ unnoticed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import httpx
import pytest

from aurora_core.errors import BackendError
from aurora_core.interfaces import Speculator
from aurora_core.records import DraftVersion, TargetSpec
from aurora_core.target.spec import read_target_spec
from aurora_core.testing.suites import BackendSuite
from aurora_core.testing.suites.backend_fixtures import PROMPTS
from aurora_core.testing.suites.material import SHARPNESS
from aurora_core.testing.suites.registered import registered_speculator
from aurora_core.testing.suites.served_backend import ServedBackend
from aurora_core.testing.tiny_target import make_tiny_target

DRAFTING = {
    "draft_vocab_size": 192,
    "training_steps": 3,
    "greedy_teacher": "argmax",
    "min_confidence": 0.0,
    "min_node_confidence": 0.0,
    "export_dtype": "float32",
}


class EagleServerSuite(BackendSuite):
    """Subclass it with `backend`, and `records_traces` where there is no model behind it."""

    target_shape: ClassVar[Mapping[str, Any]] = {}
    """Arguments of `make_tiny_target` that the engine needs."""
    confirming_route: ClassVar[str]
    """Route whose answer tells the controller that a version is live."""
    _targets: ClassVar[dict[str, TargetSpec]] = {}

    @pytest.fixture
    def settling_s(self) -> float:
        """Tokens are sent first, and what runs in the engine is told of the end later."""
        return 20.0

    @pytest.fixture
    def target(self, tmp_path_factory: pytest.TempPathFactory) -> TargetSpec:
        key = str(sorted(self.target_shape.items()))
        if key not in self._targets:
            folder = tmp_path_factory.mktemp("target")
            make_tiny_target(folder, sharpness=SHARPNESS, seed=3, **self.target_shape)
            self._targets[key] = read_target_spec(folder, name="tiny")
        return self._targets[key]

    @pytest.fixture
    def plugins(self) -> None:
        """All that are installed where the placeholder is made."""

    @pytest.fixture
    def speculator_name(self) -> str:
        return "eagle3"

    @pytest.fixture
    def speculator(self, target: TargetSpec) -> Speculator:
        return registered_speculator("eagle3", DRAFTING, target)

    @pytest.fixture
    def overfit_learning_rate(self) -> float:
        return 3e-3

    def test_a_swap_whose_answer_is_lost_is_found_out(
        self, served: ServedBackend, draft: DraftVersion
    ) -> None:
        """The server succeeded and the controller heard nothing: they agree when it asks."""
        with self.lost_answers(served), pytest.raises(BackendError, match="does not answer POST"):
            served.swap(draft)
        status = served.status()
        assert (status.live_version, status.checksum) == (draft.version, draft.checksum)
        assert served.backend._live == draft, "a new engine would start with what this one serves"
        before = served.newest()
        served.ask(PROMPTS[:1])
        assert [one.max_draft_version for one in served.finished(before)] == [draft.version]

    @contextlib.contextmanager
    def lost_answers(self, served: ServedBackend) -> Iterator[None]:
        """Lose what the server answers to a swap on its way, as a time-out does."""

        async def lose(response: httpx.Response) -> None:
            if response.request.url.path == self.confirming_route:
                raise httpx.ReadTimeout("lost on its way", request=response.request)

        client = served.backend._client.http
        client.event_hooks = {"response": [lose]}
        try:
            yield
        finally:
            client.event_hooks = {}
