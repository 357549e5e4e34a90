"""Hashing the target beside decoding: no change is missed, and nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from aurora_backend_sglang.engine.status import TargetState
from aurora_backend_sglang.engine.target_check import TargetCheck, check_of, hash_of, tensors_of

WAIT_S = 30.0


class Gate:
    """Tensors that are given out one look at a time."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.reached, self.may_go = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self) -> dict[str, Tensor]:
        self.reached.release()
        assert self.may_go.acquire(timeout=WAIT_S)
        return self.tensors


def look(check: TargetCheck) -> TargetState:
    """Ask once and wait until it is done."""
    check.ask()
    wanted = check.state().num_asked
    for thread in threading.enumerate():
        if thread.name == "aurora-target-check":
            thread.join(WAIT_S)
    state = check.state()
    assert state.num_done == wanted
    return state


def flip_a_bit(tensor: Tensor) -> None:
    tensor.view(torch.uint8).view(-1)[-1] ^= 1


@pytest.mark.parametrize(
    "change",
    [
        flip_a_bit,
        lambda tensor: tensor[:2].copy_(tensor[:2].flip(0).clone()),
        lambda tensor: tensor.data[0].copy_(tensor[1]),
    ],
    ids=["a bit", "two rows change places", "a write that torch does not count"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_change_of_any_kind_is_found_and_named(
    change: Callable[[Tensor], object], dtype: torch.dtype
) -> None:
    tensors = {name: torch.randn(5, 3).to(dtype) for name in ("left", "right")}
    check = TargetCheck(lambda: tensors, possible=True)
    assert look(check).num_changed == 0
    assert look(check).num_changed == 0
    change(tensors["right"])
    state = look(check)
    assert (state.num_changed, state.changed) == (1, ("right",))
    assert state.seconds > 0


def test_what_is_changed_back_is_as_it_was() -> None:
    tensors = {"one": torch.zeros(3)}
    check = TargetCheck(lambda: tensors, possible=True)
    look(check)
    tensors["one"][0] = 1
    assert look(check).num_changed == 1
    tensors["one"][0] = 0
    assert look(check).num_changed == 0


def test_a_tensor_that_is_gone_has_changed() -> None:
    tensors = {"one": torch.zeros(3), "other": torch.zeros(3)}
    check = TargetCheck(lambda: tensors, possible=True)
    look(check)
    del tensors["other"]
    assert look(check).changed == ("other",)


def test_nobody_waits_and_a_look_that_was_under_way_does_not_count() -> None:
    """A swap is followed by a look that began after it."""
    gate = Gate({"one": torch.zeros(3)})
    check = TargetCheck(gate, possible=True)
    check.ask()
    assert gate.reached.acquire(timeout=WAIT_S)
    check.ask()
    check.ask()
    assert (check.state().num_asked, check.state().num_done) == (3, 0)
    gate.may_go.release()
    assert gate.reached.acquire(timeout=WAIT_S)
    assert check.state().num_done == 1
    gate.tensors["one"][0] = 1
    gate.may_go.release(2)
    state = look(check)
    assert state.num_changed == 1


def test_a_fault_is_told_and_the_next_look_is_made() -> None:
    tensors: dict[str, Tensor] = {"one": torch.zeros(3)}
    faults = [ValueError("unreadable")]

    def give() -> dict[str, Tensor]:
        if faults:
            raise faults.pop()
        return tensors

    check = TargetCheck(give, possible=True)
    assert look(check).failure == "ValueError: unreadable"
    state = look(check)
    assert (state.failure, state.num_changed, state.num_done) == ("", 0, 2)


def test_shapes_and_layouts_of_all_kinds_are_hashed() -> None:
    square = torch.arange(6.0).view(2, 3)
    assert hash_of(square.t()) == hash_of(square.t().contiguous()) != hash_of(square)
    assert len({hash_of(torch.tensor(1.0)), hash_of(torch.empty(0)), hash_of(square)}) == 3


def test_what_a_model_stores_is_watched_and_what_it_computes_is_not() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("scale", torch.ones(1))
    model.register_buffer("cosines", torch.ones(1), persistent=False)
    assert tensors_of(model).keys() == {"weight", "bias", "scale"}
    assert check_of(model, num_ranks=1).state().possible
    for other in (check_of(model, num_ranks=2), check_of(model.to("meta"), num_ranks=1)):
        assert not other.state().possible
        other.ask()
        assert other.state().num_asked == 0
