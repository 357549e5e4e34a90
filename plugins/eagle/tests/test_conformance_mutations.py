"""The suite notices drafts at wrong rotary positions, which no loss and no checkpoint shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from aurora_core.records import TargetSpec
from aurora_core.testing.suite_run import run_suites
from aurora_core.testing.suites import SpeculatorSuite
from aurora_eagle import chain_drafting
from aurora_eagle.config import Eagle3Options
from aurora_eagle.serving_network import Places, ServingNetwork
from aurora_eagle.speculator import Eagle3Speculator


class Suite(SpeculatorSuite):
    @pytest.fixture
    def speculator(self, target: TargetSpec) -> Eagle3Speculator:
        return Eagle3Speculator(
            Eagle3Options(draft_vocab_size=96, min_confidence=0.0, min_node_confidence=0.0), target
        )


def drafted_rows_are_three_late(patch: pytest.MonkeyPatch) -> None:
    def late(owner: Tensor, position: Tensor, slot: Tensor) -> Places:
        return Places(owner, position + 3, slot)

    patch.setattr(chain_drafting, "Places", late)


def served_angles_are_of_another_base(patch: pytest.MonkeyPatch) -> None:
    rotary = ServingNetwork._rotary

    def doubled(network: ServingNetwork, num_positions: int) -> tuple[Tensor, Tensor]:
        cosine, sine = rotary(network, 2 * num_positions)
        return cosine[::2].contiguous(), sine[::2].contiguous()

    patch.setattr(ServingNetwork, "_rotary", doubled)


@pytest.mark.parametrize("plant", [drafted_rows_are_three_late, served_angles_are_of_another_base])
def test_the_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = "test_the_served_drafter_is_right_where_replay_says_so"
    plant(monkeypatch)
    [result] = run_suites({"TestEagle": Suite}, select=lambda suite, test: test == named)
    assert (result.test, result.outcome) == (named, "failed")
