"""The environment that SGLang lives in, asked without importing SGLang here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import anyio.to_thread

from aurora_core.errors import BackendError

SUPPORTED = "0.5.23"
"""The version of SGLang that the engine's half looks into; others name things differently."""

HOW_TO_MAKE = "make one with `make sglang-env`, or name another interpreter in `backend.python`"

_PROBE = """
import importlib.metadata as metadata, importlib.util as util, json
found = {}
for name in ("sglang", "aurora-core", "aurora-backend-sglang"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
needed = ("torch", "safetensors", "pluggy", "pydantic", "yaml")
found["missing"] = [name for name in needed if util.find_spec(name) is None]
print(json.dumps(found))
"""


async def check_environment(python: Path) -> None:
    """Do what `examine` does, without standing in the way of other tasks."""
    await anyio.to_thread.run_sync(examine, python)


def examine(python: Path) -> None:
    """See that the engine and Aurora's half of it can run in an environment.

    Raises:
        BackendError: there is no such interpreter, or something is missing or of another version.
    """
    try:
        finished = subprocess.run(
            [str(python), "-c", _PROBE], check=False, stdin=subprocess.DEVNULL, capture_output=True
        )
    except OSError as error:
        raise BackendError(
            f"there is no interpreter {str(python)!r} ({error.strerror}) to run SGLang with; "
            f"{HOW_TO_MAKE}"
        ) from error
    try:
        found = json.loads(finished.stdout)
    except ValueError as error:
        raise BackendError(
            f"{str(python)!r} is not a working Python interpreter: "
            f"{finished.stderr.decode(errors='replace').strip()[-200:] or 'no answer'}"
        ) from error
    judge(python, found)


def judge(python: Path, found: dict[str, object]) -> None:
    """Raise BackendError for the first thing in a probe's answer that does not fit."""
    if "sglang" not in found:
        raise BackendError(f"the environment of {str(python)!r} holds no SGLang; {HOW_TO_MAKE}")
    check_version(str(found["sglang"]))
    for name in ("aurora-core", "aurora-backend-sglang"):
        if name not in found:
            raise BackendError(
                f"the environment of {str(python)!r} holds SGLang but not {name}, whose recorder "
                f"runs inside SGLang; install it there with `pip install --no-deps {name}`"
            )
    missing = found.get("missing")
    if missing:
        raise BackendError(
            f"the environment of {str(python)!r} lacks the modules {missing}; install them there "
            "with pip"
        )


def check_version(version: str) -> None:
    """Raise BackendError unless this version of SGLang is the supported one."""
    if version.partition("+")[0] != SUPPORTED:
        raise BackendError(
            f"SGLang {version} is installed, but this backend works with {SUPPORTED}; install that "
            "version in the engine's environment"
        )
