"""Whether the target's weights are what they were at first, found out while the engine decodes.

    scheduler   ask()      a thread hashes every tensor, beside the steps
                state()    what it has found

Steps read these weights and write none of them, so a thread may read along. hashlib lets go of the
interpreter's lock meanwhile. A hash of the whole of every tensor misses no change of any bit.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aurora_backend_sglang.engine.status import TargetState

if TYPE_CHECKING:
    from torch import Tensor

_MAX_NAMES = 8
"""Changed tensors that are named; the others are counted."""


class TargetCheck:
    """Hashes of one model's tensors, taken in a thread; the first ones are held against later."""

    def __init__(self, tensors: Callable[[], Mapping[str, Tensor]], *, possible: bool) -> None:
        """
        Args:
            tensors: gives the tensors by name, all on the CPU; called in the thread.
            possible: False for a model that this cannot be done for; `ask` does nothing then.
        """
        self._tensors, self._possible = tensors, possible
        self._lock = threading.Lock()
        self._num_asked = self._num_done = 0
        self._is_running = False
        self._first: Mapping[str, str] = {}
        self._changed: list[str] = []
        self._seconds, self._failure = 0.0, ""

    def ask(self) -> None:
        """Have all tensors hashed once from now on; returns at once."""
        with self._lock:
            if not self._possible:
                return
            self._num_asked += 1
            was_running, self._is_running = self._is_running, True
        if not was_running:
            threading.Thread(target=self._work, name="aurora-target-check", daemon=True).start()

    def state(self) -> TargetState:
        """Return what was asked for and found so far."""
        with self._lock:
            return TargetState(
                possible=self._possible,
                num_asked=self._num_asked,
                num_done=self._num_done,
                num_changed=len(self._changed),
                changed=tuple(self._changed[:_MAX_NAMES]),
                seconds=self._seconds,
                failure=self._failure,
            )

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._num_done == self._num_asked:
                    self._is_running = False
                    return
                # One look answers all that was asked for before it.
                number = self._num_asked
            started = time.perf_counter()
            found, failure = {}, ""
            try:
                found = {name: hash_of(tensor) for name, tensor in self._tensors().items()}
            except Exception as error:  # whatever it is, the engine serves on and the run is told
                failure = f"{type(error).__name__}: {error}"
            with self._lock:
                if found and not self._first:
                    self._first = found
                names = sorted(found.keys() | self._first.keys()) if found else []
                self._changed = [n for n in names if found.get(n) != self._first.get(n)]
                self._seconds, self._failure = time.perf_counter() - started, failure
                self._num_done = number


def check_of(model: Any, *, num_ranks: int) -> TargetCheck:
    """Return the check of a model that a scheduler serves.

    It is not possible on a GPU, where SGLang's own check hashes in the GPU's memory, nor for one
    rank of several, whose findings would have to be gathered in the middle of their steps.

    Args:
        model: torch module.
        num_ranks: over which the target is spread.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    return TargetCheck(lambda: tensors_of(model), possible=on_cpu and num_ranks == 1)


def tensors_of(model: Any) -> dict[str, Tensor]:
    """Return parameters and stored buffers by name; what is computed from the shape is left out."""
    stored = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in stored}
    return {**dict(model.named_parameters()), **buffers}


def hash_of(tensor: Tensor) -> str:
    """Return the sha256 of a tensor's bytes; it is on the CPU."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(memoryview(flat.numpy())).hexdigest()
