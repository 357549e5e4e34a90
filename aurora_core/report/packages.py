"""Which software a run used."""

from __future__ import annotations

import importlib.metadata
import platform

_OF_INTEREST = (
    "aurora-core",
    "torch",
    "transformers",
    "lightning",
    "mlflow-skinny",
    "numba",
    "safetensors",
    "pydantic",
    "pluggy",
    "fastapi",
    "uvicorn",
)


def package_versions(also: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the installed version of every package a result may depend on.

    Args:
        also: further distributions, for example those of the loaded plugins.
    """
    versions = {}
    for name in dict.fromkeys((*_OF_INTEREST, *also)):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def python_and_platform() -> dict[str, str]:
    """Return the interpreter and the machine, without its name."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
