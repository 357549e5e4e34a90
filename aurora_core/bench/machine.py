"""The machine a benchmark ran on, as far as figures depend on it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil


def describe_machine() -> dict[str, str | int | float]:
    """Return processor, cores, memory, accelerators and system; nothing that names the machine."""
    machine: dict[str, str | int | float] = {
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False) or 0,
        "threads": len(psutil.Process().cpu_affinity() or ())
        if hasattr(psutil.Process, "cpu_affinity")
        else os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    if accelerators := _accelerators():
        machine["accelerators"] = accelerators
    return machine


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _accelerators() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        found = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ", ".join(found.stdout.split("\n")).strip(", ")
