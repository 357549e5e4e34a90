"""The device that the engine computes on: found here by the engine, asked about by the controller.

python -m aurora_backend_torch.device NAME      ends with 2 and a sentence if there is none
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aurora_core.errors import BackendError
from aurora_core.process_failure import USER_ERROR, find_failure

if TYPE_CHECKING:
    import torch

ALWAYS_THERE = ("auto", "cpu")


def find_device(name: str) -> torch.device:
    """Return a device of this machine.

    Args:
        name: `auto`, `cpu`, `cuda` or `cuda:<index>`; auto takes a GPU if there is one.

    Raises:
        BackendError: torch does not see it.
    """
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if num_gpus else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not num_gpus:
        raise BackendError(
            f"backend.device is {name!r} and torch sees no GPU here; use `cpu` or `auto`"
        )
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise BackendError(
            f"backend.device is {name!r} and torch sees {num_gpus} GPU(s) here, the last one as "
            f"`cuda:{num_gpus - 1}`; use that one, another one or `auto`"
        )
    return device


def check_device(name: str) -> None:
    """See that the engine will find a device, without importing torch here. Blocks.

    Raises:
        BackendError: it will not; the sentence is the engine's own.
    """
    if name in ALWAYS_THERE:
        return
    finished = subprocess.run(
        [sys.executable, "-m", "aurora_backend_torch.device", name],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    reason = find_failure(
        finished,
        f"whether there is a device {name!r} cannot be found out",
        remedy="look at `aurora doctor`",
    )
    if reason is not None:
        raise BackendError(reason)


def main(arguments: Sequence[str]) -> int:
    """Look for the device named on the command line; return the exit status."""
    try:
        find_device(arguments[0])
    except BackendError as error:
        sys.stderr.write(f"{error}\n")
        return USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
