"""What the controller asks of a server about its target, around a swap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aurora_backend_sglang.backend import SglangBackend
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from plugins.backend_sglang.tests.engine_records import publish
from plugins.backend_sglang.tests.test_backend import calls, options

SWAP = [
    "pause_generation",
    "in_place",
    "begin_weight_update",
    "update_weights_from_tensor",
    "end_weight_update",
    "continue_generation",
]


@pytest.mark.parametrize(
    ("how", "looks"),
    [
        (None, ["set_internal_state"]),
        ("while_serving", ["set_internal_state"]),
        ("between_steps", ["weights_checker"]),
        ("never", []),
    ],
)
async def test_a_swap_is_one_paused_session_and_then_a_look_at_the_target(
    interpreter: Path, plan: ServePlan, versions, how: Any, looks: list[str]
) -> None:
    backend = SglangBackend(options(interpreter, verify_target=how))
    await backend.start(plan)
    before = len(await calls(backend.url))
    await backend.swap(publish(versions))
    assert (await calls(backend.url))[before:] == [*SWAP, *looks]
    await backend.stop()


async def test_an_engine_that_cannot_hash_aside_does_it_between_steps(
    interpreter: Path, fault, plan: ServePlan, versions
) -> None:
    fault("not_hashed_aside")
    backend = SglangBackend(options(interpreter))
    await backend.start(plan)
    await backend.swap(publish(versions))
    assert (await calls(backend.url))[-1] == "weights_checker"
    await backend.stop()
    backend = SglangBackend(options(interpreter, verify_target="while_serving"))
    with pytest.raises(BackendError, match="works for a target on a CPU, in one rank"):
        await backend.start(plan)


async def test_a_change_of_the_target_is_noticed_however_it_is_looked_for(
    interpreter: Path, fault, plan: ServePlan, versions
) -> None:
    backend = SglangBackend(options(interpreter, verify_target="between_steps"))
    await backend.start(plan)
    fault("target_changes")
    with pytest.raises(BackendError, match=r"1 tensors of the target, 'model\.embed_tokens"):
        await backend.swap(publish(versions))
    await backend.stop()
